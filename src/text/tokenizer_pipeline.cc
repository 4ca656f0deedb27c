// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_pipeline.h"

#include <functional>

#include "base/printable.h"
#include "text/tokenizer_config.h"

namespace spillway {
namespace {

constexpr int kMaxSequenceDepth = 8;

// Calls visit(type, stage) for a stage, or for each stage of a sequence of them.
void for_each_stage(const JsonField& stage, const char* members,
                    const std::function<void(std::string_view, const JsonField&)>& visit,
                    int depth = 0) {
  SPW_CHECK(depth < kMaxSequenceDepth, kUnsupported, "{}: sequences nested too deeply",
            stage.path());
  const std::string_view type = stage.member("type").string();
  if (type != "Sequence") {
    visit(type, stage);
    return;
  }
  stage.member(members).for_each_element(
      [&](const JsonField& element) { for_each_stage(element, members, visit, depth + 1); });
}

struct Pipeline {
  bool byte_level = false;
  bool space_symbol = false;  // spaces are replaced by U+2581
  std::vector<SplitStage> stages;

  // A stage after ByteLevel is matched against its letters instead of the text.
  void add(std::string pattern) {
    stages.push_back({.pattern = std::move(pattern), .on_bytes = byte_level});
  }
};

bool is_space_replacement(const JsonField& stage) {
  const auto pattern = stage.member("pattern").try_member("String");
  return pattern && pattern->string() == " " && stage.member("content").string() == kSpaceSymbol;
}

void read_normalizer(std::string_view type, const JsonField& stage, Pipeline& pipeline,
                     Vocabulary& vocabulary) {
  if (type == "NFC") {
    vocabulary.normalize_nfc = true;
  } else if (type == "Prepend" && stage.member("prepend").string() == kSpaceSymbol) {
    vocabulary.add_space_prefix = true;
  } else if (type == "Replace" && is_space_replacement(stage)) {
    pipeline.space_symbol = true;
  } else {
    fail(ErrorCode::kUnsupported, "{}: normalizer {} is not supported", stage.path(),
         printable(type));
  }
}

// Escapes every character that is special in a pattern with a backslash.
std::string pattern_for(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (std::string_view(R"(\^$.[]|()?*+{}-/)").find(c) != std::string_view::npos)
      result.push_back('\\');
    result.push_back(c);
  }
  return result;
}

void read_split(const JsonField& stage, Pipeline& pipeline) {
  const JsonField pattern = stage.member("pattern");
  const auto regex = pattern.try_member("Regex");
  std::string text =
      regex ? std::string(regex->string()) : pattern_for(pattern.member("String").string());
  const std::string_view behavior = stage.member("behavior").string();
  const bool inverted = stage.boolean_or("invert", false);
  // Once spaces have been replaced by symbols, there is nothing left to split at.
  if (pipeline.space_symbol && text == " ") return;
  // An inverted `Removed` drops the text that the pattern does not match. Patterns written for it
  // match everything, so it is the same as `Isolated`.
  SPW_CHECK(behavior == "Isolated" || (behavior == "Removed" && inverted), kUnsupported,
            "{}: split behavior {} is not supported", stage.path(), printable(behavior));
  pipeline.add(std::move(text));
}

void read_punctuation(const JsonField& stage, Pipeline& pipeline) {
  const std::string behavior = stage.string_or("behavior", "Isolated");
  SPW_CHECK(behavior == "Isolated" || behavior == "Contiguous", kUnsupported,
            "{}: behavior {} is not supported", stage.path(), printable(behavior));
  pipeline.add(punctuation_pattern(behavior == "Contiguous"));
}

void read_metaspace(const JsonField& stage, Pipeline& pipeline, Vocabulary& vocabulary) {
  SPW_CHECK(stage.string_or("replacement", kSpaceSymbol) == kSpaceSymbol, kUnsupported,
            "{}.replacement: only U+2581 is supported", stage.path());
  pipeline.space_symbol = true;
  const bool old_flag = stage.boolean_or("add_prefix_space", true);
  const std::string scheme = stage.string_or("prepend_scheme", old_flag ? "always" : "never");
  vocabulary.add_space_prefix = scheme != "never";
  vocabulary.space_prefix_first_only = scheme == "first";
  vocabulary.space_prefix_unless_space = true;
  vocabulary.split_on_space = stage.boolean_or("split", true);
}

void read_pre_tokenizer(std::string_view type, const JsonField& stage, Pipeline& pipeline,
                        Vocabulary& vocabulary) {
  SPW_CHECK(!pipeline.byte_level || (type != "ByteLevel" && type != "Metaspace"), kUnsupported,
            "{}: {} after ByteLevel is not supported", stage.path(), printable(type));
  if (type == "ByteLevel") {
    vocabulary.add_space_prefix = stage.boolean_or("add_prefix_space", false);
    SPW_CHECK(!vocabulary.add_space_prefix || pipeline.stages.empty(), kUnsupported,
              "{}.add_prefix_space after another split is not supported", stage.path());
    if (stage.boolean_or("use_regex", true))
      pipeline.add(pre_split_stages(PreSplit::kGpt2).front().pattern);
    pipeline.byte_level = true;
  } else if (type == "Split") {
    read_split(stage, pipeline);
  } else if (type == "Digits") {
    pipeline.add(digits_pattern(stage.boolean_or("individual_digits", false)));
  } else if (type == "Punctuation") {
    read_punctuation(stage, pipeline);
  } else if (type == "Metaspace") {
    read_metaspace(stage, pipeline, vocabulary);
  } else {
    fail(ErrorCode::kUnsupported, "{}: pre-tokenizer {} is not supported", stage.path(),
         printable(type));
  }
}

void add_template_token(TokenId id, bool before, const JsonField& field, Vocabulary& vocabulary) {
  SPW_CHECK(id >= 0 && static_cast<size_t>(id) < vocabulary.tokens.size(), kInvalidArgument,
            "{} names a token that does not exist", field.path());
  bool& add = before ? vocabulary.add_bos : vocabulary.add_eos;
  SPW_CHECK(!add, kUnsupported, "{}: more than one token on one side is not supported",
            field.path());
  add = true;
  (before ? vocabulary.bos : vocabulary.eos) = id;
}

TokenId template_token_id(const JsonField& stage, std::string_view name,
                          const Vocabulary& vocabulary) {
  if (const auto known = stage.try_member("special_tokens")) {
    if (const auto entry = known->try_member(name)) {
      const JsonField ids = entry->member("ids");
      SPW_CHECK(ids.size() == 1, kUnsupported, "{}: one id is expected", ids.path());
      const int64_t id = ids.element(0).integer();
      return id >= 0 && id <= INT32_MAX ? static_cast<TokenId>(id) : -1;
    }
  }
  return try_find_token(vocabulary, name).value_or(-1);
}

void read_template(const JsonField& stage, Vocabulary& vocabulary) {
  bool before = true;
  stage.member("single").for_each_element([&](const JsonField& part) {
    if (part.try_member("Sequence")) {
      before = false;
      return;
    }
    const std::string_view name = part.member("SpecialToken").member("id").string();
    add_template_token(template_token_id(stage, name, vocabulary), before, part, vocabulary);
  });
}

// `pair` is [text, id].
TokenId classifier_token_id(const JsonField& pair) {
  const int64_t id = pair.element(1).integer();
  return id >= 0 && id <= INT32_MAX ? static_cast<TokenId>(id) : -1;
}

}  // namespace

void read_pipeline(const JsonField& root, Vocabulary& vocabulary) {
  Pipeline pipeline;
  if (const auto normalizer = root.try_member("normalizer"))
    for_each_stage(*normalizer, "normalizers", [&](std::string_view type, const JsonField& stage) {
      read_normalizer(type, stage, pipeline, vocabulary);
    });
  if (const auto pre_tokenizer = root.try_member("pre_tokenizer"))
    for_each_stage(*pre_tokenizer, "pretokenizers",
                   [&](std::string_view type, const JsonField& stage) {
                     read_pre_tokenizer(type, stage, pipeline, vocabulary);
                   });
  SPW_CHECK(pipeline.byte_level != pipeline.space_symbol, kUnsupported,
            "{}: neither a byte-level nor a SentencePiece tokenizer", root.path());
  if (pipeline.byte_level) {
    vocabulary.model = TokenizerModel::kByteLevelBpe;
    vocabulary.pre_split = pre_split_from_stages(pipeline.stages);
    if (vocabulary.pre_split == PreSplit::kCustom)
      vocabulary.split_stages = std::move(pipeline.stages);
  } else {
    SPW_CHECK(pipeline.stages.empty(), kUnsupported,
              "{}.pre_tokenizer: a split of this kind is not supported", root.path());
    vocabulary.model = TokenizerModel::kSentencePiece;
  }
}

bool read_post_processor(const JsonField& root, Vocabulary& vocabulary) {
  const auto processor = root.try_member("post_processor");
  if (!processor) return false;
  bool known = false;
  for_each_stage(*processor, "processors", [&](std::string_view type, const JsonField& stage) {
    if (type == "ByteLevel") return;
    known = true;
    if (type == "TemplateProcessing") {
      read_template(stage, vocabulary);
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      add_template_token(classifier_token_id(stage.member("cls")), true, stage, vocabulary);
      add_template_token(classifier_token_id(stage.member("sep")), false, stage, vocabulary);
    } else {
      fail(ErrorCode::kUnsupported, "{}: post-processor {} is not supported", stage.path(),
           printable(type));
    }
  });
  return known;
}

}  // namespace spillway
