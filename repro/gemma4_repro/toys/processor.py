"""The toys' tokenizer and `Gemma4Processor`. SGLang loads a full processor for the multimodal architecture."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor

from gemma4_repro.toys import language

# The words of all turns in a row: the toys know no roles, but a chat request should still be answered.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['content'] is string %} {{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %} {{ part['text'] }}"
    "{% elif part['type'] in ('image', 'audio', 'video') %} <|{{ part['type'] }}|>{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer over `language.vocabulary()`; adds the begin-of-sequence token, as Gemma's does."""
    tokenizer = Tokenizer(WordLevel({t: i for i, t in enumerate(language.vocabulary())}, unk_token=language.UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{language.BOS} $A", special_tokens=[(language.BOS, language.token_id(language.BOS))]
    )
    tokenizer.add_special_tokens(list(language.SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=language.PAD,
        eos_token=language.EOS,
        bos_token=language.BOS,
        unk_token=language.UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
        extra_special_tokens={
            "image_token": language.IMAGE,
            "boi_token": language.BEGIN_IMAGE,
            "eoi_token": language.END_IMAGE,
            "audio_token": language.AUDIO,
            "boa_token": language.BEGIN_AUDIO,
            "eoa_token": language.END_AUDIO,
            "sot_token": language.BEGIN_TURN,
            "eot_token": language.END_TURN,
        },
    )


def build_processor() -> Gemma4Processor:
    """Return the processor with every part that SGLang's Gemma-4 loader asks for."""
    return Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessor(),
        tokenizer=build_tokenizer(),
        video_processor=Gemma4VideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )
