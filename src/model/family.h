// SPDX-License-Identifier: Apache-2.0
// A model family: how its files say the shape and how they call the weights. One small file per
// family.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "model/transformer_shape.h"
#include "model/weight_slots.h"
#include "storage/tensor_index.h"

namespace spillway {

// A published model of a family, for dummy:NAME and for planning.
struct KnownSizes {
  const char* name;
  int layers, hidden, heads, kv_heads, ffn, vocab, context;
  bool tied;
};

struct Family {
  // What GGUF's general.architecture and config.json's model_type call it.
  std::span<const std::string_view> gguf_names, folder_names;
  // Reads sizes and choices from metadata (and, where the format leaves it open, from which tensors
  // there are).
  TransformerShape (*read_shape)(const ModelFiles& files);
  // The names of this family's weights in these files.
  std::span<const WeightName> (*names)(const ModelFiles& files);
  // GGUF's keys for a shape, so that read_shape() finds it again; its names are
  // names(ModelFiles{}).
  void (*write_gguf_keys)(const TransformerShape& shape, Metadata& keys);
  // Whether GGUF files have the rows of q and k so that rotary pairs lie side by side, where
  // Hugging Face has halves.
  bool gguf_pairs_rope = false;
  // What other programs make of such a file; empty where they read it.
  const char* gguf_caveat = "";
  // The published models, and what they have beside these sizes: rope, biases, its own name.
  std::span<const KnownSizes> known = {};
  void (*complete)(TransformerShape& shape) = nullptr;
};

inline bool is_gguf(const ModelFiles& files) { return files.format == ModelFiles::Format::kGguf; }
// What the files call their family; empty where they do not say.
std::string family_name(const ModelFiles& files);

// By that name. Throws kUnsupported for an unknown one.
const Family& family_of(const ModelFiles& files);

extern const Family kLlamaFamily;     // Llama 1, 2, 3, Mistral, SmolLM2: GGUF and Hugging Face
extern const Family kQwenFamily;      // Qwen2, Qwen2.5 and Qwen3
extern const Family kNeoXFamily;      // GPT-NeoX-20B and Pythia
extern const Family kStableLmFamily;  // StableLM-3B-4E1T and StableLM 2
extern const Family kOptFamily;       // OPT: Hugging Face, and GGUF files of our own making

// All of them, in the order in which files are tried.
std::span<const Family* const> families();

// Whether the files have a tensor of any of these weights ("query.bias"), in any layer. For GGUF,
// which has no switches for what may be left out: a network has it if any of it is there, and then
// all of it must be.
bool has_any(const ModelFiles& files, std::span<const WeightName> names,
             std::initializer_list<std::string_view> weights);

}  // namespace spillway
