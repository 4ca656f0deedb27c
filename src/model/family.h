// SPDX-License-Identifier: Apache-2.0
// A model family: how its files give the shape, and what they call the weights. Each family has
// one small file.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "model/transformer_shape.h"
#include "model/weight_slots.h"
#include "storage/tensor_index.h"

namespace spillway {

// The sizes of a published model, for dummy:NAME and for planning.
struct KnownSizes {
  const char* name;
  int layers, hidden, heads, kv_heads, ffn, vocab, context;
  bool tied;
};

struct Family {
  // The names that GGUF's general.architecture and config.json's model_type have for it.
  std::span<const std::string_view> gguf_names, folder_names;
  // Reads sizes and choices from metadata (and, where the format leaves a choice open, from which
  // tensors there are).
  TransformerShape (*read_shape)(const ModelFiles& files);
  // The names of this family's weights in these files.
  std::span<const WeightName> (*names)(const ModelFiles& files);
  // Writes GGUF's keys for a shape, from which read_shape() reads it again; the weights are then
  // named by names() of files with these keys and no tensors.
  void (*write_gguf_keys)(const TransformerShape& shape, Metadata& keys);
  // Whether GGUF files order the rows of q and k so that rotary pairs are adjacent, where Hugging
  // Face has them in two halves.
  bool gguf_pairs_rope = false;
  // How other programs handle a GGUF of this family; empty if they read it.
  const char* gguf_caveat = "";
  // The published models; complete() sets what they have beyond these sizes, such as rope, biases
  // and the exact family name.
  std::span<const KnownSizes> known = {};
  void (*complete)(TransformerShape& shape) = nullptr;
};

inline bool is_gguf(const ModelFiles& files) { return files.format == ModelFiles::Format::kGguf; }
// The files' name for their family; empty if they have none.
std::string family_name(const ModelFiles& files);

// The family with that name. Throws kUnsupported for an unknown one.
const Family& family_of(const ModelFiles& files);

extern const Family kLlamaFamily;     // Llama 1, 2, 3, Mistral, SmolLM2: GGUF and Hugging Face
extern const Family kQwenFamily;      // Qwen2, Qwen2.5 and Qwen3
extern const Family kNeoXFamily;      // GPT-NeoX-20B and Pythia
extern const Family kStableLmFamily;  // StableLM-3B-4E1T and StableLM 2
extern const Family kGpt2Family;      // GPT-2 and GPT-3
extern const Family kGptJFamily;      // GPT-J
extern const Family kPhi3Family;      // Phi-3, Phi-3.5, Phi-4 and Phi-4-mini
extern const Family kSmolLm3Family;   // SmolLM3
extern const Family kFalconFamily;    // Falcon 7B, 40B and 180B, Falcon 2
extern const Family kPhi2Family;      // Phi-1, Phi-1.5 and Phi-2
extern const Family kCommandRFamily;  // Command R and Aya
extern const Family kGlmFamily;       // GLM-4: transformers' folders, and all GGUF files of ChatGLM
extern const Family kChatGlmFamily;   // ChatGLM2, ChatGLM3, GLM-4: folders of their own code
extern const Family kOlmo2Family;     // OLMo 2
extern const Family kGraniteFamily;   // Granite 3
extern const Family kGemmaFamily;     // the first Gemma models
extern const Family kGemma3Family;    // Gemma 3, text alone
extern const Family kGlm4Family;      // GLM-4-0414
extern const Family kOptFamily;       // OPT: Hugging Face, and GGUF files written by Spillway

// All families, in the order in which they are tried.
std::span<const Family* const> families();

// Whether the files have a tensor of any of these weights ("query.bias"), in any layer. GGUF has
// no switches for optional weights: a network has them if any of their tensors is there, and then
// all must be.
bool has_any(const ModelFiles& files, std::span<const WeightName> names,
             std::initializer_list<std::string_view> weights);

}  // namespace spillway
