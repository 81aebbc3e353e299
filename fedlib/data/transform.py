"""How images become inputs where a paper departs from the data set's own way."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Transform(BaseModel):
    """Normalisation, size and augmentation of images."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: tuple[float, ...] | None = None  # per channel, in [0, 1]; None: the data's
    std: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    padding: int = Field(default=0, ge=0)  # of the random crop of training images
    flip: bool = False  # random horizontal flip of training images
    per_batch: bool = False  # one crop and flip for all images of a batch
    crop_test: bool = False  # test images are cropped at random too, once
    side: int | None = Field(default=None, ge=1)  # images are resized to this square

    @model_validator(mode="after")
    def _crops(self) -> "Transform":
        if self.crop_test and not self.padding:
            raise ValueError("crop_test: got True with padding 0, which moves no image")
        return self
