// SPDX-License-Identifier: Apache-2.0
// The line editor on libedit. It adds what libedit lacks: pasted text as a whole (bracketed paste),
// Ctrl-C that clears the line, Alt-Enter, and bytes that are not UTF-8, which are passed on as they
// are.
#include <histedit.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/terminal.h"
#include "text/utf8.h"

namespace spillway {
namespace {

constexpr int kMaxHistory = 1000;
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";
// A byte that is not UTF-8 is stored as this plus the byte: a surrogate, which no valid text
// contains.
constexpr wchar_t kRawByte = 0xDC00;
// A wait for keys wakes this often, for signals that another thread got and for the window's size.
constexpr int kLookUpMs = 500;

wchar_t g_prompt[] = L"\1\x1b[1m\1>\1\x1b[0m\1 ";
wchar_t g_plain_prompt[] = L"> ";

// True for a terminal that knows no control sequences.
bool is_dumb() {
  const char* const term = std::getenv("TERM");
  return term == nullptr || *term == '\0' || std::strcmp(term, "dumb") == 0;
}

std::wstring widen(std::string_view text) {
  std::wstring wide;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (c.valid) {
      wide += static_cast<wchar_t>(c.code_point);
      i += c.bytes;
    } else {
      wide += static_cast<wchar_t>(kRawByte + static_cast<unsigned char>(text[i++]));
    }
  }
  return wide;
}

std::string narrow(std::wstring_view wide) {
  std::string text;
  for (const wchar_t c : wide) {
    if (c >= kRawByte && c <= kRawByte + 0xFF) {
      text += static_cast<char>(c - kRawByte);
    } else {
      append_utf8(text, static_cast<char32_t>(c));
    }
  }
  return text;
}

struct EndEditor {
  void operator()(EditLine* editor) const { el_end(editor); }
};
struct EndHistory {
  void operator()(HistoryW* history) const { history_wend(history); }
};

}  // namespace

struct LineEditor::State {
  std::unique_ptr<HistoryW, EndHistory> history{history_winit()};
  std::unique_ptr<EditLine, EndEditor> editor;
  std::string input;  // read from the terminal, not yet consumed
  size_t taken = 0;
  struct winsize window = {};
  bool dumb = is_dumb();
  bool cleared = false;
  bool was_empty = true;

  // Makes the terminal mark the start and end of pasted text, or stop doing so.
  void bracket_pastes(bool on) const {
    if (!dumb) print_now(on ? "\x1b[?2004h" : "\x1b[?2004l");
  }
  void follow_window();
  bool fill();
  int next(wchar_t& c);

  // These are libedit's callbacks.
  static State& of(EditLine* editor) {
    void* data = nullptr;
    el_wget(editor, EL_CLIENTDATA, &data);
    return *static_cast<State*>(data);
  }
  static int read_character(EditLine* editor, wchar_t* c) { return of(editor).next(*c); }
  static wchar_t* prompt(EditLine* editor) { return of(editor).dumb ? g_plain_prompt : g_prompt; }
  static unsigned char clear_line(EditLine* editor, int key);
  static unsigned char take_paste(EditLine* editor, int key);
  static unsigned char insert_newline(EditLine* editor, int key);
  static unsigned char suspend(EditLine* editor, int key);
};

// Redraws if the window's size has changed, which libedit does not notice by itself: it would
// misplace the text before the cursor.
void LineEditor::State::follow_window() {
  struct winsize now = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &now) != 0) return;
  if (now.ws_col == window.ws_col && now.ws_row == window.ws_row) return;
  window = now;
  if (dumb) return;
  print_now("\r\x1b[J");
  el_resize(editor.get());
  el_wset(editor.get(), EL_REFRESH);
}

// Waits for more input; returns false at its end, or when a signal came.
bool LineEditor::State::fill() {
  if (taken == input.size()) {
    input.clear();
    taken = 0;
  }
  while (!interrupted()) {
    struct pollfd keys = {STDIN_FILENO, POLLIN, 0};
    const int ready = poll(&keys, 1, kLookUpMs);
    follow_window();
    if (ready <= 0) continue;
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return false;
    input.append(bytes, static_cast<size_t>(count));
    return true;
  }
  return false;
}

// Follows libedit's convention: returns 1 for a character, 0 at the end.
int LineEditor::State::next(wchar_t& c) {
  while (true) {
    if (taken < input.size()) {
      const Utf8Char decoded = decode_utf8(input, taken);
      if (decoded.valid) {
        c = static_cast<wchar_t>(decoded.code_point);
        taken += decoded.bytes;
        return 1;
      }
      if (!decoded.truncated) {
        c = static_cast<wchar_t>(kRawByte + static_cast<unsigned char>(input[taken++]));
        return 1;
      }
    }
    if (!fill()) return 0;
  }
}

// Handles Ctrl-C. Ends the line as Enter does, so that later output is below it; read() discards
// its text.
unsigned char LineEditor::State::clear_line(EditLine* editor, int /*key*/) {
  State& state = of(editor);
  const LineInfoW* const line = el_wline(editor);
  state.cleared = true;
  state.was_empty = line->lastchar == line->buffer;
  el_cursor(editor, static_cast<int>(line->lastchar - line->cursor));
  el_winsertstr(editor, L"^C");
  el_wpush(editor, L"\n");
  return CC_REFRESH;
}

// Takes everything between the marks of a paste as text; libedit would take a newline for Enter.
unsigned char LineEditor::State::take_paste(EditLine* editor, int /*key*/) {
  std::wstring text;
  wchar_t c = 0;
  while (!text.ends_with(kPasteEnd) && el_wgetc(editor, &c) == 1) text += c;
  if (text.ends_with(kPasteEnd)) text.resize(text.size() - kPasteEnd.size());
  std::wstring clean;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == L'\r') {
      // A lone \r is a newline, and so is \r\n as a whole.
      if (i + 1 == text.size() || text[i + 1] != L'\n') clean += L'\n';
    } else if (text[i] == L'\n' || text[i] == L'\t' || (text[i] >= L' ' && text[i] != 0x7F)) {
      clean += text[i];
    }
  }
  if (!clean.empty() && el_winsertstr(editor, clean.c_str()) != 0) return CC_ERROR;
  return CC_REFRESH;
}

unsigned char LineEditor::State::insert_newline(EditLine* editor, int /*key*/) {
  return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

// Handles Ctrl-Z. Signals are off while a line is edited, where Ctrl-C is a key like others.
unsigned char LineEditor::State::suspend(EditLine* editor, int /*key*/) {
  State& state = of(editor);
  state.bracket_pastes(false);
  print_now("\r\n");
  el_wset(editor, EL_PREP_TERM, 0);
  std::raise(SIGTSTP);
  el_wset(editor, EL_PREP_TERM, 1);
  state.bracket_pastes(true);
  return CC_REDISPLAY;
}

namespace {

void bind(EditLine* editor, const wchar_t* key, const wchar_t* function) {
  el_wset(editor, EL_BIND, key, function, nullptr);
  el_wset(editor, EL_BIND, L"-a", key, function, nullptr);  // for vi's command mode
}

}  // namespace

LineEditor::LineEditor(const std::vector<std::string>& history)
    : state_(std::make_unique<State>()) {
  // libedit asks the locale how wide characters are and how they are encoded.
  std::setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
  state_->editor.reset(el_init("spillway", stdin, stdout, stderr));
  SPW_CHECK(state_->editor != nullptr && state_->history != nullptr, kIo,
            "this terminal cannot be edited on; pipe the messages in, one a line");
  EditLine* const editor = state_->editor.get();
  el_wset(editor, EL_CLIENTDATA, state_.get());
  el_wset(editor, EL_GETCFN, &State::read_character);
  el_wset(editor, EL_PROMPT_ESC, &State::prompt, L'\1');
  el_wset(editor, EL_EDITOR, L"emacs");
  el_wset(editor, EL_HIST, history_w, state_->history.get());
  // While a line is edited, Ctrl-C is a key, and the \r\n of a paste is not two newlines.
  for (const wchar_t* const mode : {L"-isig", L"-icrnl", L"-inlcr"})
    el_wset(editor, EL_SETTY, L"-d", mode, nullptr);
  el_wset(editor, EL_ADDFN, L"spillway-clear", L"Forget what was typed", &State::clear_line);
  el_wset(editor, EL_ADDFN, L"spillway-paste", L"Take pasted text", &State::take_paste);
  el_wset(editor, EL_ADDFN, L"spillway-newline", L"Insert a newline", &State::insert_newline);
  el_wset(editor, EL_ADDFN, L"spillway-suspend", L"Stop until fg", &State::suspend);
  el_source(editor, nullptr);  // ~/.editrc
  bind(editor, L"^C", L"spillway-clear");
  bind(editor, L"^Z", L"spillway-suspend");
  bind(editor, L"\x1b[200~", L"spillway-paste");
  bind(editor, L"\x1b\n", L"spillway-newline");
  bind(editor, L"\x1b\r", L"spillway-newline");
  // Keys that terminals send and libedit does not bind by default.
  bind(editor, L"\x1b[3~", L"ed-delete-next-char");
  bind(editor, L"\x1b[1;5C", L"em-next-word");
  bind(editor, L"\x1b[1;5D", L"ed-prev-word");
  bind(editor, L"^R", L"em-inc-search-prev");

  HistEventW event;
  history_w(state_->history.get(), &event, H_SETSIZE, kMaxHistory);
  history_w(state_->history.get(), &event, H_SETUNIQUE, 1);
  for (const std::string& text : history) remember(text);
  ioctl(STDOUT_FILENO, TIOCGWINSZ, &state_->window);
}

LineEditor::~LineEditor() = default;

TypedText LineEditor::read() {
  state_->cleared = false;
  // libedit would prepare the terminal only after drawing the prompt; Ctrl-D before that would not
  // be a key yet.
  el_wset(state_->editor.get(), EL_PREP_TERM, 1);
  state_->bracket_pastes(true);
  int count = 0;
  const wchar_t* const line = el_wgets(state_->editor.get(), &count);
  std::fflush(stdout);
  state_->bracket_pastes(false);
  if (state_->cleared) return {TypedEnd::kCleared, "", state_->was_empty};
  if (line == nullptr || count <= 0 || interrupted()) return {TypedEnd::kEndOfInput, "", true};
  std::wstring_view text(line, static_cast<size_t>(count));
  if (text.ends_with(L'\n')) text.remove_suffix(1);
  return {TypedEnd::kEntered, narrow(text), text.empty()};
}

void LineEditor::remember(const std::string& text) {
  HistEventW event;
  history_w(state_->history.get(), &event, H_ENTER, widen(text).c_str());
}

std::string_view LineEditor::shortcomings() { return {}; }

}  // namespace spillway
