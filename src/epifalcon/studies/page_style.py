"""How every page looks: run report, comparison, privacy card, study. One place.

Dark on light, no script, no font or picture from outside. Wide tables and wide
figures scroll inside their own box, so that a page is never wider than a phone;
on paper everything is shown whole.
"""

from typing import Final

STYLE: Final = """
:root { color-scheme: light; --ink: #1d2a35; --paper: #f7f8f9; --line: #d3d9de;
        --soft: #4c5a66; --accent: #00588f; --card: #ffffff; --note: #fdf6e3;
        --note-line: #b07800; --told: #eaf3f9; }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0; color: var(--ink); background: var(--paper);
       font: 16px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
       overflow-wrap: break-word; }
body > * { max-width: 66rem; margin-inline: auto; padding-inline: 1.2rem; }
header { padding-top: 2rem; }
footer { padding-block: 1.5rem 3rem; color: var(--soft); font-size: .9rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 2.4rem 0 .7rem;
     border-top: 3px solid var(--accent); padding-top: .7rem; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p { margin: .5rem 0; max-width: 46rem; }
p.lead { color: var(--soft); margin: 0 0 1.4rem; font-size: 1.05rem; }
a { color: var(--accent); }
a:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--accent);
                                            outline-offset: 2px; }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; padding: .6rem 0;
         margin: 1.2rem 0 0; list-style: none; font-size: .95rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.2rem, 1fr));
         gap: .7rem; padding: 0; margin: 0; list-style: none; }
.cards li { background: var(--card); border: 1px solid var(--line);
            padding: .7rem .9rem; border-radius: .5rem; }
.cards b { display: block; font-size: 1.45rem; color: var(--accent);
           font-variant-numeric: tabular-nums; }
.cards span { color: var(--soft); font-size: .88rem; line-height: 1.35;
              display: block; }
ul.told, .note { border-left: 5px solid var(--accent); background: var(--told);
                 margin: .8rem 0; padding: .8rem 1rem .8rem 2rem;
                 border-radius: 0 .5rem .5rem 0; }
ul.told li { margin: .35rem 0; }
.note { border-color: var(--note-line); background: var(--note); padding-left: 1rem; }
.note p { margin: .25rem 0; }
figure { margin: 1.2rem 0; padding: .8rem; background: var(--card);
         border: 1px solid var(--line); border-radius: .5rem; }
figure img { display: block; width: 100%; max-width: 38rem; height: auto;
             margin: 0 auto; }
figure.wide img { max-width: none; min-width: 38rem; }
figcaption { color: var(--soft); font-size: .92rem; margin-top: .6rem; }
.figures { display: flex; flex-wrap: wrap; gap: 0 1rem; }
.figures > figure { flex: 1 1 min(100%, 26rem); min-width: 0; }
.figures > figure.wide { flex-basis: 100%; }
.wide { overflow-x: auto; }
/* A shadow at either side tells that the box scrolls on; it is covered at the end. */
div.wide { background:
    linear-gradient(to right, var(--card) 30%, transparent) left / 2.5rem 100%,
    linear-gradient(to left, var(--card) 30%, transparent) right / 2.5rem 100%,
    radial-gradient(farthest-side at 0 50%, rgb(0 0 0 / 32%), transparent)
      left / .9rem 100%,
    radial-gradient(farthest-side at 100% 50%, rgb(0 0 0 / 32%), transparent)
      right / .9rem 100%,
    var(--card);
    background-repeat: no-repeat;
    background-attachment: local, local, scroll, scroll, local; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
        font-size: .95rem; }
th, td { padding: .4rem .6rem; text-align: right;
         border-bottom: 1px solid var(--line); }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--ink); }
td { white-space: nowrap; }
th.words, td.words { text-align: left; }
td.long { white-space: normal; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
td.long:not(:first-child) { min-width: 11rem; }
code { font-size: .92em; background: rgb(0 0 0 / 6%); padding: .05em .3em;
       border-radius: .25rem; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
      border-radius: .5rem; padding: 1rem; font-size: .85rem; line-height: 1.45; }
@media (max-width: 40rem) {
  body { font-size: 15px; }
  body > * { padding-inline: .8rem; }
  h1 { font-size: 1.5rem; }
  .cards { grid-template-columns: repeat(2, 1fr); }
  figure { padding: .4rem; }
  table { font-size: .88rem; }
  th, td { padding: .35rem .45rem; }
  /* Names stay in sight while numbers pass by. */
  th:first-child, td:first-child { position: sticky; left: 0; white-space: normal;
                                   min-width: 6rem; max-width: 8.5rem;
                                   background: var(--card);
                                   border-right: 1px solid var(--line); }
}
@media print {
  @page { size: A4; margin: 14mm 13mm; }
  :root { --paper: #fff; }
  html { font-size: 9.5pt; }
  body { font-size: 9.5pt; line-height: 1.4; }
  body > * { max-width: none; padding-inline: 0; }
  nav { display: none; }
  .wide, pre { overflow: visible; }
  .cards { grid-template-columns: repeat(4, 1fr); }
  figure, .cards li, ul.told li, .note, tr { break-inside: avoid; }
  figure img, figure.wide img { min-width: 0; max-width: 100%; }
  .figures { display: block; }
  .figures > figure { margin: .6rem 0; }
  .figures > figure:not(.wide) img { max-width: 11cm; }
  h2, h3 { break-after: avoid; }
  h2 { margin-top: 1.4rem; }
  div.wide { background: none; }
  table { font-size: 7.2pt; }
  th, td { padding: .12rem .22rem; }
  td.words, th:first-child, td:first-child { white-space: normal; }
  td.long:not(:first-child) { min-width: 0; }
  pre { white-space: pre-wrap; font-size: 7pt; }
  #settings + pre { columns: 2; }
}
"""
