package usage_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// Each case is a place or a number of a provider's SDK that the files of testdata lack.
func TestFurtherShapesOfUsage(t *testing.T) {
	for _, one := range []struct{ what, body, want string }{
		{"a total alone", `{"data":[{"embedding":[0.1]}],"usage":{"total_tokens":10}}`, "10 0 0 -1 sent 0"},
		{"reranking", `{"results":[{"index":0}],"meta":{"billed_units":{"search_units":2}}}`,
			"0 0 0 0, search 2 sent 0"},
		{"embeddings of Cohere", `{"embeddings":[[1]],"meta":{"billed_units":{"input_tokens":7}}}`,
			"7 0 0 -1 sent 0"},
		{"DeepSeek", `{"usage":{"prompt_tokens":90,"completion_tokens":5,"total_tokens":95,` +
			`"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":26}}`, "26 64 0 5 sent 0"},
		{"Perplexity", `{"usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14,` +
			`"citation_tokens":900,"reasoning_tokens":800,"num_search_queries":3}}`,
			"9 0 0 5, search 3 sent 0"},
		{"OpenRouter", `{"usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14,` +
			`"server_tool_use":{"web_search_requests":2}}}`, "9 0 0 5, search 2 sent 0"},
		{"searches of xAI", `{"output":[],"usage":{"input_tokens":9,"output_tokens":5,"total_tokens":14,` +
			`"input_tokens_details":{"cached_tokens":4},"server_side_tool_usage_details":` +
			`{"web_search_calls":1,"x_search_calls":3}}}`, "5 4 0 5, search 4 sent 0"},
		{"connectors of Mistral", `{"usage":{"prompt_tokens":188,"completion_tokens":55,` +
			`"total_tokens":7355,"connector_tokens":7112,"connectors":{"web_search":1}}}`,
			"7300 0 0 55, search 1 sent 0"},
		{"Interactions", `{"usage":{"total_input_tokens":100,"total_output_tokens":30,"total_tokens":140,` +
			`"total_thought_tokens":10,"total_cached_tokens":20,"input_tokens_by_modality":` +
			`[{"modality":"text","tokens":60},{"modality":"audio","tokens":40}],` +
			`"output_tokens_by_modality":` +
			`[{"modality":"image","tokens":25}],"cached_tokens_by_modality":[{"modality":"audio",` +
			`"tokens":20}],"grounding_tool_count":[{"type":"google_search","count":1,` +
			`"search_query_count":2}]},"service_tier":"flex"}`, "60 0 0 15, audio_input 20, " +
			"audio_cache_read 20, image_output 25, search 2 sent 0, flex"},
		{"Titan", `{"inputTextTokenCount":5,"results":[{"tokenCount":9,"outputText":"x"}]}`,
			"5 0 0 9 sent 0"},
		{"Llama", `{"generation":"x","prompt_token_count":5,"generation_token_count":9}`,
			"5 0 0 9 sent 0"},
		{"llama.cpp", `{"content":"x","tokens_evaluated":30,"tokens_predicted":9,` +
			`"timings":{"prompt_n":10,"cache_n":20,"predicted_n":9}}`, "10 20 0 9 sent 0"},
		{"a fallback", `{"content":[{"text":"x"}],"model":"b","usage":{"input_tokens":9,"output_tokens":5,` +
			`"iterations":[{"type":"message","model":"a","input_tokens":7,"output_tokens":1},` +
			`{"type":"fallback_message","model":"b","input_tokens":9,"output_tokens":5}]}}`,
			"0 0 0 0, also a 7 0 0 1 sent 0, also b 9 0 0 5 sent 0 sent 0"},
		{"Groq Compound", `{"usage":{"prompt_tokens":30,"completion_tokens":3,"total_tokens":33},` +
			`"usage_breakdown":{"models":[{"model":"a","usage":{"prompt_tokens":10,"completion_tokens":1}},` +
			`{"model":"b","usage":{"prompt_tokens":20,"completion_tokens":2}}]}}`,
			"0 0 0 0, also a 10 0 0 1 sent 0, also b 20 0 0 2 sent 0 sent 0"},
		{"fast", `{"content":[],"usage":{"input_tokens":9,"output_tokens":5,"service_tier":"standard",` +
			`"speed":"fast"}}`, "9 0 0 5 sent 0, priority"},
	} {
		for _, size := range []int{1, 1 << 20} {
			check.Equal(t, one.what, read(header(plain), []byte(one.body), size), one.want)
		}
	}
}

// An error in a 200, and zeros, are no report of an answer.
func TestErrorsAndZerosInAnswers(t *testing.T) {
	for _, one := range []struct{ what, body, want string }{
		{"zeros beside text", `{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":0,` +
			`"completion_tokens":0}}`, "-1 0 0 -1 sent 0"},
		{"zeros without text", `{"choices":[{"message":{"content":""}}],"usage":{"prompt_tokens":0,` +
			`"completion_tokens":0}}`, "0 0 0 0 sent 0"},
		{"an error of Gemini", `[{"error":{"code":503,"message":"x","status":"UNAVAILABLE"}}]`,
			"-1 0 0 -1 sent 0, failed"},
		{"an error with zeros", `{"error":"x","choices":[],"usage":{"prompt_tokens":0,"total_tokens":0}}`,
			"-1 0 0 -1 sent 0, failed"},
		{"an error in a choice", `{"choices":[{"error":{"code":502},"message":{"content":""}}]}`,
			"-1 0 0 -1 sent 0, failed"},
		{"an error of MiniMax", `{"choices":null,"base_resp":{"status_code":1004,"status_msg":"x"}}`,
			"-1 0 0 -1 sent 0, failed"},
		{"an error with usage", `{"error":{"code":1},"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
			"3 0 0 1 sent 0"},
		{"an error after text", `{"error":{"code":1},"choices":[{"message":{"content":"x"}}]}`,
			"-1 0 0 -1 sent 0"},
	} {
		check.Equal(t, one.what, read(header(plain), []byte(one.body), 1<<20), one.want)
	}
}

// Each case is the data of the events of a stream.
func TestFurtherShapesOfStreams(t *testing.T) {
	text := `{"choices":[{"delta":{"content":"abc"}}]}`
	for _, one := range []struct {
		what string
		data []string
		want string
	}{
		{"speech", []string{`{"type":"speech.audio.done","usage":{"input_tokens":14,"output_tokens":101,` +
			`"total_tokens":115}}`}, "14 0 0 0, audio_output 101 sent 0, stream"},
		{"Cohere", []string{`{"type":"message-end","delta":{"finish_reason":"COMPLETE","usage":` +
			`{"billed_units":{"input_tokens":7,"output_tokens":3},"tokens":{"input_tokens":90}}}}`},
			"7 0 0 3 sent 0, stream"},
		{"Interactions", []string{`{"event_type":"interaction.completed","interaction":{"usage":` +
			`{"total_input_tokens":11,"total_output_tokens":9,"total_thought_tokens":2},` +
			`"service_tier":"priority"}}`}, "11 0 0 11 sent 0, priority, stream"},
		{"Bedrock", []string{`{"type":"message_stop","amazon-bedrock-invocationMetrics":` +
			`{"inputTokenCount":9,"outputTokenCount":5,"cacheReadInputTokenCount":4}}`},
			"9 4 0 5 sent 0, stream"},
		{"a search before the stream breaks off", []string{`{"type":"response.output_item.done","item":` +
			`{"id":"ws_1","type":"web_search_call","status":"completed","action":{"type":"search"}}}`,
			`{"type":"response.output_item.done","item":{"id":"ws_2","type":"web_search_call",` +
				`"status":"completed","action":{"type":"open_page"}}}`,
			`{"type":"response.output_text.delta","delta":"abcd"}`}, "-1 0 0 -1, search 1 sent 1, stream"},
		{"an hour's cache", []string{`{"type":"message_start","message":{"usage":{"input_tokens":5,` +
			`"cache_creation_input_tokens":60,"cache_creation":{"ephemeral_5m_input_tokens":0,` +
			`"ephemeral_1h_input_tokens":60},"output_tokens":1}}}`, `{"type":"message_delta","usage":` +
			`{"input_tokens":5,"cache_creation_input_tokens":60,"output_tokens":8}}`},
			"5 0 0 8, cache_write_1h 60 sent 0, stream"},
		{"zeros after a number", []string{text, `{"usage":{"prompt_tokens":9,"completion_tokens":1}}`, text,
			`{"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}`},
			"9 0 0 1 sent 1, stream"},
		{"a smaller number", []string{text, `{"usage":{"prompt_tokens":9,"completion_tokens":8,` +
			`"total_tokens":17}}`, `{"usage":{"prompt_tokens":7,"completion_tokens":2}}`},
			"7 0 0 2 sent 0, stream"},
		{"zeros before text", []string{`{"usage":{"prompt_tokens":0,"completion_tokens":0},"choices":[]}`,
			text}, "-1 0 0 -1 sent 1, stream"},
		{"zeros and no text", []string{`{"usage":{"prompt_tokens":0,"completion_tokens":0},"choices":[]}`},
			"-1 0 0 -1 sent 0, stream"},
		{"an error alone", []string{`{"type":"error","code":"server_error","message":"x"}`},
			"-1 0 0 -1 sent 0, stream, failed"},
		{"a failed response", []string{`{"type":"response.created","response":{"error":null}}`,
			`{"type":"response.failed","response":{"error":{"code":"x"},"output":[],"usage":null}}`},
			"-1 0 0 -1 sent 0, stream, failed"},
		{"an error after the start", []string{`{"type":"message_start","message":{"usage":{` +
			`"input_tokens":5,` +
			`"output_tokens":1}}}`, `{"type":"error","error":{"type":"overloaded_error"}}`},
			"5 0 0 1 sent 0, stream"},
		{"a tier in events without usage", []string{`{"service_tier":"flex","choices":[{"delta":` +
			`{"content":"abc"}}]}`}, "-1 0 0 -1 sent 1, flex, stream"},
	} {
		body := ""
		for _, data := range one.data {
			body += "data: " + data + "\n\n"
		}
		for _, size := range []int{1, 1 << 20} {
			check.Equal(t, one.what, read(header(events), []byte(body), size), one.want)
		}
	}
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
		r := usage.New(header(plain), &held)
		_, _ = r.Write(body)
		u := r.End()
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
