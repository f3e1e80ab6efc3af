"""Models of images and sound: Hugging Face's, torchvision's and timm's, at tiny sizes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from language import config
from problem import LENGTH, VOCAB, Problem, causal, classes, numbers, three, tokens

SIDE = 16
NO_TOKENS = {"context": "images, not a sequence with a target for each position"}


def pictures(step: int, side: int = SIDE) -> dict[str, Tensor]:
    return {"pixel_values": numbers(step, 3, side, side), "labels": classes(step)}


def labelled(step: int, side: int = SIDE) -> tuple[Tensor, Tensor]:
    return numbers(step, 3, side, side), classes(step)


def classifier(kind: str, **settings: Any) -> Problem:
    from transformers import AutoModelForImageClassification

    sizes = {"num_labels": 10, "image_size": SIDE, "patch_size": 4, **settings}
    module = AutoModelForImageClassification.from_config(config(kind, **sizes))
    return Problem(module, three(pictures), absent=NO_TOKENS)


def vit() -> Problem:
    return classifier("vit")


def swin() -> Problem:
    from transformers import SwinConfig, SwinForImageClassification

    settings = SwinConfig(
        image_size=SIDE, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
        window_size=2, drop_path_rate=0.0, num_labels=10,
    )  # fmt: skip
    return Problem(SwinForImageClassification(settings), three(pictures), absent=NO_TOKENS)


def convnext() -> Problem:
    return classifier("convnext", hidden_sizes=[16, 32], depths=[2, 2], num_stages=2, patch_size=2,
                      drop_path_rate=0.0)  # fmt: skip


def segformer() -> Problem:
    return classifier(
        "segformer", num_encoder_blocks=2, depths=[2, 2], sr_ratios=[2, 1], hidden_sizes=[16, 32],
        patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2],
        drop_path_rate=0.0, classifier_dropout_prob=0.0,
    )  # fmt: skip


def beit() -> Problem:
    return classifier("beit", use_relative_position_bias=True, drop_path_rate=0.0)


def clip() -> Problem:
    from transformers import CLIPConfig, CLIPModel

    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4}  # fmt: skip
    settings = CLIPConfig(
        text_config={**tower, "vocab_size": VOCAB, "max_position_embeddings": LENGTH,
                     "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        vision_config={**tower, "image_size": SIDE, "patch_size": 4},
        projection_dim=16,
    )  # fmt: skip
    return Problem(OwnLoss(CLIPModel(settings), return_loss=True), three(pairs), absent={
        "context": "a contrastive loss over the rows, no target for each position"
    })  # fmt: skip


class OwnLoss(nn.Module):
    """A model asked for its own loss."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        super().__init__()
        self.model, self.settings = model, settings

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.model(**inputs, **self.settings).loss


def pairs(step: int) -> dict[str, Tensor]:
    ids = tokens(step)
    ids[:, -1] = 2
    return {"input_ids": ids, "pixel_values": numbers(step, 3, SIDE, SIDE)}


def whisper() -> Problem:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    settings = WhisperConfig(
        vocab_size=VOCAB, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_source_positions=16, max_target_positions=LENGTH,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        begin_suppress_tokens=[], dropout=0.0,
    )  # fmt: skip
    return Problem(WhisperForConditionalGeneration(settings), three(spoken))


def spoken(step: int) -> dict[str, Tensor]:
    return {"input_features": numbers(step, 8, 32), "labels": causal(step)["labels"]}


def wav2vec2() -> Problem:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    settings = Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        conv_dim=(16, 16), conv_stride=(4, 4), conv_kernel=(8, 8), num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=16,
        num_labels=10, mask_time_prob=0.0, mask_feature_prob=0.0, layerdrop=0.0,
        hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
        activation_dropout=0.0, do_stable_layer_norm=False, apply_spec_augment=False,
    )  # fmt: skip
    return Problem(Wav2Vec2ForSequenceClassification(settings), three(sound), absent={
        "context": "one target for a recording"
    })  # fmt: skip


def sound(step: int) -> dict[str, Tensor]:
    return {"input_values": numbers(step, 256), "labels": classes(step)}


def torchvision_net(name: str, **settings: Any) -> Problem:
    from torchvision import models

    return images_only(getattr(models, name)(num_classes=10, **settings))


def images_only(module: nn.Module, side: int = 32, lr: float = 0.01) -> Problem:
    """A module that reads images and returns logits; its loss is given to climb."""
    batches = three(lambda step: labelled(step, side))
    return Problem(module, batches, loss="cross_entropy", lr=lr, absent=NO_TOKENS)


def mobilenet_v3() -> Problem:
    return torchvision_net("mobilenet_v3_small", width_mult=0.25)


def efficientnet() -> Problem:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    shape = [MBConvConfig(1, 3, 1, 32, 16, 1, 0.5), MBConvConfig(4, 3, 2, 16, 24, 2, 0.5)]
    module = EfficientNet(shape, dropout=0.0, stochastic_depth_prob=0.0, num_classes=10)
    return images_only(module)


def densenet() -> Problem:
    from torchvision.models import DenseNet

    return images_only(DenseNet(8, (2, 2), 16, num_classes=10))


def shufflenet() -> Problem:
    from torchvision.models import ShuffleNetV2

    return images_only(ShuffleNetV2([2, 2, 2], [8, 16, 24, 32, 32], num_classes=10))


def timm_net(name: str, side: int = SIDE, **settings: Any) -> Problem:
    import timm

    module = timm.create_model(name, num_classes=10, **settings)
    return images_only(module, side)


def timm_mixer() -> Problem:
    from timm.models.mlp_mixer import MlpMixer

    return images_only(MlpMixer(10, SIDE, patch_size=4, embed_dim=32, num_blocks=2), SIDE)


def timm_resnet18() -> Problem:
    return timm_net("resnet18", 32, channels=(8, 16, 24, 32))


def timm_convnext() -> Problem:
    return timm_net("convnext_atto", side=32, depths=(1, 1, 2, 1), dims=(8, 16, 24, 32))


def timm_vit() -> Problem:
    return timm_net("vit_tiny_patch16_224", img_size=SIDE, patch_size=4, embed_dim=32, depth=2,
                    num_heads=4)  # fmt: skip


ALL = [
    vit, swin, convnext, segformer, beit, clip, whisper, wav2vec2, mobilenet_v3, efficientnet,
    densenet, shufflenet, timm_resnet18, timm_convnext, timm_vit, timm_mixer,
]  # fmt: skip
