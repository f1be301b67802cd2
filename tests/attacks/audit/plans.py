"""Plans and a small model for audits."""

from epifalcon.federation.privacy_plan import PrivacyPlan
from epifalcon.federation.settings import PrivacySettings
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.events import Releases

MODEL = FalconSettings(width=6, layers=1)
SLOTS = Releases(visit=1, day=6, person=18)


def plan_of(model=MODEL, **privacy):
    return PrivacyPlan.of(PrivacySettings(**privacy), model, SLOTS, 2)


def paper(sigma, model=MODEL, **privacy):
    sigmas = {"upload_sigma": sigma, "gradient_sigma": sigma}
    return plan_of(model, mode="paper", **sigmas, **privacy)
