package usage_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// A transcript is a file of answers or of prompts. The lines are:
//
//	json BODY      an answer, which is read in parts of one byte and whole
//	html BODY      one of another type
//	plain BODY     a stream, or an answer, with a type of text
//	event DATA     a stream; each further line, which begins with a tab, is the data of another event
//	prompt BODY    a request, quoted if it is a Go string
//	path PATH      a request to a path, with the model "body" in its body
//	input BODY     the input of a request, in which DATA, PNG and PDF stand for a million characters
//
// The result is that of shown, that of prompt, or the estimate of the input.
func TestTranscripts(t *testing.T) {
	golden.ReplayLines(t, "testdata/*.txt", func(t *testing.T, kind, text string) string {
		switch kind {
		case "prompt":
			if unquoted, err := strconv.Unquote(text); err == nil {
				text = unquoted
			}
			return prompt(t, "/v1/chat/completions", text)
		case "path":
			return prompt(t, text, `{"model":"body"}`)
		case "input":
			return fmt.Sprint(inputOf(t, text))
		case "event":
			text = "data: " + strings.ReplaceAll(text, "\n", "\n\ndata: ") + "\n\n"
		}
		h := header(map[string]string{"json": plain, "html": "text/html", "event": events,
			"plain": "text/plain"}[kind])
		whole := read(h, []byte(text), 1<<20)
		check.Equal(t, text, read(h, []byte(text), 1), whole)
		return whole
	})
}

// Numbers may overlap, exceed their total, and not add up: the parts never do.
func TestPartsAddUpToTheReportedTotal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(name string) int64 { return rapid.Int64Range(0, 1000).Draw(rt, name) }
		reported := map[string]any{}
		usageOf := func(object map[string]any, names ...string) {
			for _, name := range names {
				if rapid.Bool().Draw(rt, "has "+name) {
					object[name] = draw(name)
				}
			}
		}
		prompt, answer := draw("prompt")+1, draw("answer")
		reported["prompt_tokens"], reported["completion_tokens"] = prompt, answer
		want := prompt + answer
		if rapid.Bool().Draw(rt, "has total") {
			total := draw("total")
			reported["total_tokens"] = total
			want = max(want, total)
		}
		details, cached, of := map[string]any{}, map[string]any{}, map[string]any{}
		usageOf(details, "cached_tokens", "cache_write_tokens", "audio_tokens", "image_tokens", "text_tokens")
		usageOf(cached, "audio_tokens", "image_tokens", "text_tokens")
		usageOf(of, "reasoning_tokens", "audio_tokens", "image_tokens", "text_tokens")
		details["cached_tokens_details"] = cached
		reported["prompt_tokens_details"], reported["completion_tokens_details"] = details, of
		usageOf(reported, "cache_read_input_tokens", "cache_creation_input_tokens")
		body, _ := json.Marshal(map[string]any{"usage": reported})
		var held int64
		r := usage.New(&held, usage.Response{Header: header(plain)})[0]
		_, _ = r.Write(body)
		u := usage.End(r)[0]
		if got := u.Parts.InputTokens() + u.Parts.OutputTokens(); got != want {
			rt.Errorf("%s: %d tokens, want %d: %v", body, got, want, u.Parts)
		}
		for i, n := range u.Parts {
			if n < 0 {
				rt.Errorf("%s: %s is %d", body, option.PartNames[i], n)
			}
		}
		if u.Parts.OutputTokens() < answer || u.Parts.InputTokens() < prompt {
			rt.Error(fmt.Sprintf("%s: less than reported: %v", body, u.Parts))
		}
	})
}
