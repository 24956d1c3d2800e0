package usage_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
)

const plain, events = "application/json", "text/event-stream"

// want returns the text of the Usage of an answer.
func want(name string, x *llm.Answer) string {
	if x.Rule == "free" {
		u := usage.Usage{Failed: strings.Contains(string(x.Body), `"error": {`) ||
			strings.Contains(string(x.Body), `"error":`),
			PromptOnly: strings.HasSuffix(name, "/nousage.json") || strings.Contains(name, "count-tokens") ||
				strings.Contains(name, "moderations")}
		u.Parts[option.Input], u.Parts[option.Output] = usage.Unreported, usage.Unreported
		return shown(&u)
	}
	u := usage.Usage{Parts: x.Parts, ServiceTier: x.Tier, Stream: x.Rule == "stream" ||
		strings.Contains(name, "stream") || !strings.HasSuffix(name, ".json")}
	if strings.Contains(name, "embed") {
		u.Parts[option.Output] = usage.Unreported
	}
	if strings.Contains(name, "compaction") { // the request's model is named beside an unnamed one
		return "171400 4000 0 3260, also made-up-claude 21850 0 0 940, cache_write_1h 6000 sent 0 sent 0"
	}
	if x.Rule == "stream" {
		u.Sent = x.Sent()
	}
	return shown(&u)
}

// shown returns the text of a Usage: its first kinds of tokens, and the other parts that it has.
func shown(u *usage.Usage) string {
	p := u.Parts
	text := fmt.Sprint(p[option.Input], p[option.CacheRead], p[option.CacheWrite], p[option.Output])
	for i, name := range option.PartNames {
		if p[i] != 0 && i != option.Request && i > option.CacheWrite && i != option.Output {
			text += fmt.Sprint(", ", name, " ", p[i])
		}
	}
	for _, also := range u.Also {
		one := usage.Usage{Parts: also.Parts}
		text += ", also " + also.Model + " " + shown(&one)
	}
	text += fmt.Sprint(" sent ", u.Sent)
	if u.ServiceTier != "" && u.ServiceTier != "standard" {
		text += ", " + u.ServiceTier
	}
	if u.Stream {
		text += ", stream"
	}
	if u.PromptOnly {
		text += ", prompt only"
	}
	if u.Failed {
		text += ", failed"
	}
	return strings.TrimSuffix(text+", "+u.Invalid, ", ")
}

// read returns the text of the usage in a body, which is written in parts of a size.
func read(h http.Header, body []byte, size int) string {
	var total int64
	r := usage.New(&total, usage.Response{Header: h})[0]
	for len(body) > size {
		_, _ = r.Write(body[:size])
		body = body[size:]
	}
	_, _ = r.Write(body)
	u := usage.End(r)[0]
	if total != 0 {
		return fmt.Sprint(total, " bytes are held after the end")
	}
	return shown(&u)
}

func header(contentType string) http.Header { return http.Header{"Content-Type": {contentType}} }

func TestUsageIsReadAsEachProviderReportsIt(t *testing.T) {
	for name, x := range llm.Answers(t) {
		if x.Charged != nil {
			continue // results of a batch, which are read with GET and cost nothing
		}
		for _, size := range []int{1, 7, 1 << 20} {
			what := fmt.Sprintf("%s in parts of %d bytes", name, size)
			h := header(x.ContentType)
			for name, value := range x.Headers {
				h.Set(name, value)
			}
			check.Equal(t, what, read(h, x.Body, size), want(name, x))
			h.Set("Content-Encoding", "gzip")
			check.Equal(t, what+" of gzip", read(h, llm.Gzip(x.Body), size), want(name, x))
		}
	}
}

// Streams may have other line ends, comments, a byte order mark, no space after data:, and several lines of
// data. Proxies and servers change them.
func TestStreamsAreReadInEachOfTheirForms(t *testing.T) {
	all := llm.Answers(t)
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom([]string{"openai-chat/stream.sse", "openai-chat/cut.sse",
			"openai-responses/cached.sse", "anthropic/cached.sse", "anthropic/cut.sse", "gemini/cut.sse",
			"gemini/stream.sse", "ollama/stream.ndjson", "ollama/cut.ndjson"}).Draw(rt, "name")
		body := strings.ReplaceAll(string(all[name].Body), "\r\n", "\n")
		if strings.HasSuffix(name, "sse") {
			if rapid.Bool().Draw(rt, "no space") {
				body = strings.ReplaceAll(body, "data: ", "data:")
			}
			if rapid.Bool().Draw(rt, "comments") {
				body = ": ping\n\n" + strings.ReplaceAll(body, "\n\n",
					"\nid: 7\n\n: {\"usage\":{}}\nretry: 9\n\n")
			}
			if rapid.Bool().Draw(rt, "lines of data") {
				body = strings.ReplaceAll(body, `{"`, "{\ndata: \"")
			}
		}
		body = strings.ReplaceAll(body, "\n", rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(rt, "end"))
		if rapid.Bool().Draw(rt, "mark") {
			body = "\ufeff" + body
		}
		if rapid.Bool().Draw(rt, "no last line end") {
			body = strings.TrimRight(body, "\r\n")
		}
		size := rapid.IntRange(1, len(body)).Draw(rt, "size")
		got := read(header(all[name].ContentType), []byte(body), size)
		if want := want(name, all[name]); got != want {
			rt.Errorf("%s: got %s, want %s: %q", name, got, want, body)
		}
	})
}

func TestBodiesBeyondTheBoundsAreNotHeld(t *testing.T) {
	const report = `{"usage":{"prompt_tokens":8,"completion_tokens":9},"x":"`
	const none, some = "-1 0 0 -1 sent 0", "8 0 0 9 sent 0"
	long := report + strings.Repeat("x", usage.MaxBody-len(report)-99) + `"}`
	tooLong := report + strings.Repeat("x ", usage.MaxBody/2) + `"}`
	picture := `{"data":[{"b64_json":"` + strings.Repeat("iVBO", usage.MaxBody) + `"}],` + report[1:] + `"}`
	event := func(text string) string { return "data: " + text + "\n\n" }
	for _, one := range []struct{ what, contentType, body, want string }{
		{"a long text", plain, long, some},
		{"a longer text", plain, tooLong, none + ", too long"},
		{"a picture", plain, picture, "8 0 0 0, image_output 9 sent 0"},
		{"an event with a picture", events, event(picture), "8 0 0 0, image_output 9 sent 0, stream"},
		{"a long event", events, event(long), some + ", stream"},
		{"a longer event", events, event(tooLong), none + ", stream"},
		{"one after a longer event", events, event(tooLong) + event(report+`"}`),
			some + ", stream"},
		{"a longer line", "application/x-ndjson", tooLong + "\n" + report + "\"}\n",
			some + ", stream"},
		{"a long stream", events, strings.Repeat(event(long[:1<<20]), 8) + event(report+`"}`),
			some + ", stream"},
		{"a longer element", plain, "[" + tooLong + "]", none + ", too long"},
		{"an element with a picture", plain, "[" + picture + "]", "8 0 0 0, image_output 9 sent 0, stream"},
	} {
		check.Equal(t, one.what, read(header(one.contentType), []byte(one.body), 1<<14), one.want)
	}
	h := header(events)
	h.Set("Content-Encoding", "gzip")
	stream := bytes.Repeat([]byte(event(long[:1<<20])+event(report+`"}`)), 65)
	check.Equal(t, "a stream of 65 MB as gzip", read(h, llm.Gzip(stream), 1<<14),
		some+", stream, too long")
	h.Set("Content-Encoding", "br")
	check.Equal(t, "brotli", read(h, []byte("x"), 1), none+", stream, encoded (br)")
}

// Readers hold at most MaxBodies together, and a stream holds only its current event.
func TestStreamsHoldOnlyTheirEvents(t *testing.T) {
	var total int64
	stream := usage.New(&total, usage.Response{Header: header(events)})[0]
	body := usage.New(&total, usage.Response{Header: header(plain)})[0]
	part := bytes.Repeat([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"), 1000)
	for range 20 {
		_, _ = stream.Write(part)
		if total > 0 {
			t.Fatalf("a stream holds %d bytes after whole events, want 0", total)
		}
	}
	_, _ = body.Write([]byte(`{"x":"`))
	total += usage.MaxBodies - total - 1000
	_, _ = body.Write(part)
	check.Equal(t, "a body beyond the bound of all", usage.End(body)[0].Invalid, "too long")
	check.Equal(t, "the stream beside it", usage.End(stream)[0].Sent, 20*1000)
}

// FuzzBodies reads any body in any parts. The result must not depend on the parts.
func FuzzBodies(f *testing.F) {
	for _, x := range llm.Answers(f) {
		f.Add(x.Body, x.ContentType, uint16(5))
	}
	f.Add([]byte("\r\n\rdata:{\n"), events, uint16(0))
	f.Add([]byte("[1,[{\"usage\":{}}]"), "", uint16(0))
	f.Fuzz(func(t *testing.T, body []byte, contentType string, part uint16) {
		if len(body) > 1<<14 {
			return
		}
		whole := read(header(contentType), body, len(body)+1)
		if parts := read(header(contentType), body, int(part)+1); parts != whole {
			t.Errorf("%s in parts of %d bytes: %s, want %s as for the whole: %q", contentType, part+1, parts,
				whole, body)
		}
		h := header(contentType)
		h.Set("Content-Encoding", "gzip")
		if decoded := read(h, llm.Gzip(body), int(part)+1); decoded != whole {
			t.Errorf("%s as gzip: %s, want %s as without: %q", contentType, decoded, whole, body)
		}
	})
}
