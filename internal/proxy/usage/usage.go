// Package usage reads what a request asks of a language model (ReadPrompt), and how many tokens the model has
// used for the response, as its provider reports this.
//
// A Reader reads the body of a response in parts, while they pass. It divides the body into events: the
// events of a stream, the lines of NDJSON, the elements of an array, or the one text of JSON. The table forms
// says where an event reports its usage, and the type streamed which fields of an event are new text. Of each
// kind of tokens, the last report counts. A stream may end before it reports its output, so the Reader also
// estimates the output that was sent since the last report.
//
// One goroutine at a time uses a Reader, which holds at most one event. Readers and ReadPrompt decode JSON
// with compiled code, because Traefik interprets this package and would take long for each byte.
package usage

import (
	"math"
	"strings"
)

// Unreported is the count of a kind of tokens that the response has not reported.
const Unreported = -1

// Usage is the result of reading a response. The kinds of tokens do not overlap.
type Usage struct {
	Input      int64 // the prompt, without CacheRead and CacheWrite; or Unreported, as the other kinds
	CacheRead  int64 // the part of the prompt that came from a cache
	CacheWrite int64 // the part of the prompt that was written to a cache
	Output     int64 // the answer, with its reasoning
	Sent       int64 // an estimate of the output that was sent since the last report of output

	Stream     bool   // the response is a stream, which may end at any event
	PromptOnly bool   // the response only counts the tokens of a prompt, so nothing was generated
	Invalid    string // the reason why the body could not be read, or ""
}

// Reported reports whether the response has reported any usage.
func (u *Usage) Reported() bool {
	return u.Input != Unreported || u.CacheRead != Unreported || u.CacheWrite != Unreported ||
		u.Output != Unreported
}

// The kinds of tokens, as indexes.
const (
	input = iota
	cacheRead
	cacheWrite
	output
	kinds
)

// form describes the usage that an API reports.
type form struct {
	at       []string        // the paths of the object that holds the counts; "" is the event
	has      []string        // paths in the object; one must exist
	counts   [kinds][]string // the paths of the counts of each kind, which are added
	total    string          // a count that may exceed the others by further output, or ""
	contains bool            // the input contains the tokens read from and written to a cache
	free     bool            // input that is left out was not computed
}

// forms lists the APIs. The first form that fits is read. The name of a count has an end of endings.
var forms = []form{
	{ // OpenAI: chat, completions, embeddings. At some servers only the total contains the reasoning.
		at:  []string{"usage", "x_groq.usage"},
		has: []string{"prompt_tokens", "completion_tokens"},
		counts: [kinds][]string{{"prompt_tokens"}, {"prompt_tokens_details.cached_tokens"},
			{"prompt_tokens_details.cache_write_tokens"}, {"completion_tokens"}},
		total: "total_tokens", contains: true,
	},
	{ // OpenAI: Responses. In a stream, an event has the response.
		at:  []string{"usage", "response.usage"},
		has: []string{"input_tokens_details"},
		counts: [kinds][]string{{"input_tokens"}, {"input_tokens_details.cached_tokens"},
			{"input_tokens_details.cache_write_tokens"}, {"output_tokens"}},
		total: "total_tokens", contains: true,
	},
	{ // Anthropic: input in message_start, output in message_delta. Also Responses without details.
		at:  []string{"usage", "message.usage", "response.usage"},
		has: []string{"input_tokens", "output_tokens"},
		counts: [kinds][]string{{"input_tokens"}, {"cache_read_input_tokens"},
			{"cache_creation_input_tokens"}, {"output_tokens"}},
	},
	{ // Gemini: thoughts stand beside candidates, and the results of tools beside the prompt.
		at:  []string{"usageMetadata", "response.usageMetadata"},
		has: []string{"promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount"},
		counts: [kinds][]string{{"promptTokenCount", "toolUsePromptTokenCount"}, {"cachedContentTokenCount"},
			nil, {"candidatesTokenCount", "thoughtsTokenCount"}},
		contains: true,
	},
	{ // Ollama: the last line has the counts. A prompt from the cache has none.
		at:     []string{""},
		has:    []string{"eval_count", "prompt_eval_count"},
		counts: [kinds][]string{{"prompt_eval_count"}, nil, nil, {"eval_count"}},
		free:   true,
	},
}

// endings has the ends of the names of all counts. An event with none of them reports no usage.
var endings = [][]byte{[]byte(`_tokens"`), []byte(`TokenCount"`), []byte(`eval_count"`)}

// at returns the value at a path of names with periods between them, or nil.
func at(value interface{}, path string) interface{} {
	if path == "" {
		return value
	}
	fields, ok := value.(map[string]interface{})
	if !ok {
		return nil
	}
	rest := ""
	if i := strings.IndexByte(path, '.'); i >= 0 {
		rest = path[i+1:]
		path = path[:i]
	}
	return at(fields[path], rest)
}

// count returns the whole number of a value, or Unreported.
func count(value interface{}) int64 {
	const most = 1 << 53
	n, ok := value.(float64)
	if !ok || n < 0 || n > most || n != math.Trunc(n) {
		return Unreported
	}
	return int64(n)
}

// report reads the usage that an event reports, and returns whether it reports any.
func report(r *Reader, event map[string]interface{}) bool {
	for i := range forms {
		f := &forms[i]
		for _, path := range f.at {
			counts := at(event, path)
			for _, name := range f.has {
				if at(counts, name) != nil {
					return readCounts(r, f, counts)
				}
			}
		}
	}
	return false
}

// readCounts reads the counts of a form, and returns whether there are any.
func readCounts(r *Reader, f *form, counts interface{}) bool {
	var sums [kinds]int64
	for kind, paths := range f.counts {
		sums[kind] = Unreported
		for _, path := range paths {
			n := count(at(counts, path))
			if n == Unreported {
				continue
			}
			if sums[kind] == Unreported {
				sums[kind] = 0
			}
			sums[kind] += n
		}
	}
	if f.total != "" && sums[input] != Unreported {
		known := sums[input]
		if sums[output] != Unreported {
			known += sums[output]
		}
		if total := count(at(counts, f.total)); total > known {
			sums[output] = total - sums[input]
		}
	}
	if f.free && sums[input] == Unreported && sums[output] != Unreported {
		sums[input] = 0
	}
	isReport := false
	for kind, n := range sums {
		if n != Unreported {
			r.last[kind] = n
			isReport = true
		}
	}
	if sums[input] != Unreported {
		r.contains = f.contains
	}
	if sums[output] != Unreported {
		r.events = 0
		r.characters = 0
	}
	return isReport
}

// onlyCounts reports whether a JSON body without usage only counts the tokens of a prompt.
func onlyCounts(body map[string]interface{}) bool {
	for _, name := range []string{"choices", "candidates", "content", "output", "message", "response",
		"usage", "usageMetadata", "error"} {
		if body[name] != nil {
			return false
		}
	}
	return count(body["input_tokens"]) != Unreported || count(body["totalTokens"]) != Unreported
}
