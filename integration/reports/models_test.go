package reports

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
)

// answers has the answers of language models by their names. startServers sets it.
var answers map[string]*llm.Answer

// failedWithUsage is a stream of Responses that fails, and reports 37 and 14 tokens.
const failedWithUsage = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":" +
	"{\"status\":\"failed\",\"usage\":{\"input_tokens\":37,\"output_tokens\":14,\"total_tokens\":51}}}\n\n"

// words is a stream of 2,000 events with a word each, which then pauses.
var words = strings.Repeat("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"wor \"}}]}\n\n", 2000)

// asksModel is an upstream that answers as a provider does. X-Answer names the answer, X-Sent its encoding,
// X-Status another status, and X-Tokens what it reports. An upstream compresses if it may.
func asksModel(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	name := r.Header.Get("X-Answer")
	a := answers[name]
	if status, err := strconv.Atoi(r.Header.Get("X-Status")); err == nil {
		w.WriteHeader(status)
		return
	}
	switch zipped := strings.Contains(r.Header.Get("Accept-Encoding")+r.Header.Get("X-Sent"), "gzip"); {
	case a != nil && strings.Contains(name, "/cut."):
		a.Respond(w, false)
		<-r.Context().Done()
	case a != nil:
		a.Respond(w, zipped)
	case name == "failed":
		(&llm.Answer{Status: http.StatusOK, ContentType: "text/event-stream",
			Body: []byte(failedWithUsage)}).Respond(w, zipped)
	case name == "words":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, words)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"usage":{"prompt_tokens":%s,"completion_tokens":0}}%2000s`,
			r.Header.Get("X-Tokens"), "")
	}
}

// ofTokens are limits of tokens by case: a zone and a rule.
const (
	zoneOfTokens = "key {header.X-Case}\nalgorithm fixed_window\nlimit 100000 1h\nunit tokens"
	ruleOfTokens = `SELECT rate_limit_rule('ID', hosts => '{HOST}', count_by => '{header:X-Case}',
		algorithm => 'fixed_window', limits => '{rpm=1000000/1h,tpm=100000 tokens/1h}');`
)

// prompt is the body of a request, whose estimated input is promptInput.
const (
	prompt      = `{"model":"r-model","max_tokens":9,"x":"xx"}`
	promptInput = (len(prompt) + 3) / 4
)

// modelSite returns a site with limits of tokens, and a check that asks it.
func modelSite(ask func(v *visit)) site {
	return site{policy: " ", sql: ruleOfTokens, zones: []string{zoneOfTokens}, upstream: asksModel,
		check: ask}
}

// cost returns a site whose answers cost what they report, plain and as gzip that the upstream sends unasked.
// names has the names of answers.
func cost(names ...string) site {
	return modelSite(func(v *visit) {
		for _, name := range names {
			for _, sent := range []string{"plain", "gzip"} {
				v.askModel(name, sent)
				v.awaitTokens(name+"-"+sent, answers[name].Cost(int64(promptInput)))
			}
		}
	})
}

// askModel asks for an answer as SDKs do, and checks its status and body.
func (v *visit) askModel(name, sent string) {
	v.Helper()
	a := answers[name]
	line := a.Request
	if !strings.HasPrefix(line, "GET ") {
		line += " " + prompt
	}
	r := v.dial().ask(line, "Accept-Encoding: gzip, deflate, br\nX-Answer: "+name+
		"\nX-Sent: "+sent+"\nX-Case: "+name+"-"+sent)
	body := r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(strings.NewReader(body))
		check.OK(v, err)
		text, err := io.ReadAll(z)
		check.OK(v, err)
		body = string(text)
	}
	if r.Status != a.Status || body != string(a.Body) {
		v.Errorf("%s: %d %.200s, want %d %.200s", name, r.Status, body, a.Status, a.Body)
	}
}

// awaitTokens waits until the zone and the rule of a site have charged a number of tokens, and hold none.
func (v *visit) awaitTokens(key string, want int64) {
	v.Helper()
	v.Await(fmt.Sprintf("%d tokens of %s", want, key), func() bool {
		return cluster.Query[string](v, v.dsn, `SELECT coalesce(string_agg(concat(count, ' ',
				coalesce(cardinality(held), 0)), ', '), '')
			FROM rate_limit_durable WHERE prefix ~ $1 AND key = $2`, "^(rule/)?"+v.id+"(/tpm)?$", key) ==
			fmt.Sprintf("%d 0, %[1]d 0", want)
	})
}

// leave asks for an answer, reads a text of it, and leaves.
func (v *visit) leave(line, name, text, key string) {
	v.Helper()
	c := v.dial()
	c.send(line+" "+prompt, "X-Answer: "+name+"\nX-Case: "+key)
	response, err := http.ReadResponse(c.in, nil)
	check.OK(v, err)
	got := make([]byte, len(text))
	if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != text {
		v.Errorf("%s: error %v, and the client gets %.200s …", name, err, got)
	}
	_ = c.conn.Close() // before the body, which goes on
	_ = response.Body.Close()
}

// whoLeaves checks that clients who leave pay for what they have read: the words of a stream, one client
// after another, and the answers that are cut.
func whoLeaves(v *visit) {
	for i := range int64(20) {
		v.leave("POST /v1/chat/completions", "words", words, "words")
		v.awaitTokens("words", (i+1)*int64(2000+promptInput))
	}
	for name, a := range answers {
		if strings.Contains(name, "/cut.") {
			v.leave(a.Request, name, string(a.Body), name)
			v.awaitTokens(name, a.Cost(int64(promptInput)))
		}
	}
}

// alwaysFree checks that requests cost nothing, as often as would use up the limit if each cost what it held.
func alwaysFree(v *visit) {
	const chat, atOnce = "POST /v1/chat/completions ", 20
	c := v.dial()
	for _, a := range []struct {
		line, answer string
		status       int
	}{
		{"GET /v1/models", "openai-chat/models.json", 200}, {"HEAD /v1/models", "", 200},
		{"OPTIONS /v1/models", "", 204}, {chat, "openai-chat/429.json", 429},
		{chat, "openai-chat/400.json", 400}, {"POST /v1/responses ", "openai-responses/401.json", 401},
		{chat, "", 404}, {chat, "", 408}, {chat, "", 304},
		{"POST /v1/messages/count_tokens ", "anthropic/nousage.json", 200},
	} {
		if strings.HasSuffix(a.line, " ") {
			a.line += `{"model":"r-model"}` // holds 4,096 tokens of output
		}
		headers := "X-Case: c\nX-Answer: " + a.answer
		if a.answer == "" {
			headers += fmt.Sprint("\nX-Status: ", a.status)
		}
		for i := range 2 * atOnce {
			r := c.ask(a.line, headers)
			if r.Status != a.status || strings.Contains(r.Body, "retryAfter") {
				v.Errorf("%.60s: %d %s, want %d", a.line, r.Status, r.Body, a.status)
			}
			if i%atOnce == atOnce-1 && strings.HasPrefix(a.line, "POST ") {
				v.awaitTokens("c", 0) // nothing is held any more
			}
		}
	}
	c.ask(chat+prompt, "X-Case: c\nX-Answer: openai-chat/plain.json")
	v.awaitTokens("c", 35)
}

// encoded is a Caddy whose encode compresses for the client if it comes before the handler. After it, as by
// default, encode does nothing, because the handler has set Accept-Encoding.
func encoded(before, after, encoding string) site {
	s := cost("openai-chat/plain.json", "openai-chat/stream.sse")
	costs := s.check
	s.only, s.before, s.after, s.check = "caddy", before, after, func(v *visit) {
		costs(v)
		r := v.dial().ask("POST / "+prompt, "Accept-Encoding: gzip\nX-Case: c\nX-Tokens: 7")
		check.Equal(v, "Content-Encoding", r.Header.Get("Content-Encoding"), encoding)
	}
	return s
}

var models = []report{
	{"R40", "open-ace/open-ace#3422; bitrouter/bitrouter#537", []site{modelSite(whoLeaves)}},
	{"R42", "QuantumNous/new-api#5235", []site{cost("openai-chat/plain.json", "openai-chat/stream.sse",
		"openai-responses/plain.json", "openai-responses/stream.sse", "anthropic/plain.json",
		"anthropic/stream.sse", "gemini/plain.json", "gemini/stream.sse", "ollama/plain.json",
		"ollama/stream.ndjson"),
		encoded("route {\nencode gzip", "}", "gzip"), encoded("encode gzip", "", "")}},
	{"R43", "envoyproxy/ai-gateway#2184; praxis-proxy/ai#1033; Helicone/helicone#5000", []site{
		cost("openai-responses/plain.json", "openai-responses/stream.sse", "openai-responses/incomplete.sse"),
		modelSite(func(v *visit) {
			r := v.dial().ask("POST /v1/responses "+prompt,
				"X-Answer: failed\nX-Case: c")
			check.Equal(v, "the body", r.Body, failedWithUsage)
			v.awaitTokens("c", 51)
		})}},
	{"R44", "wso2/api-platform#3253; opendatahub-io/models-as-a-service#370", []site{modelSite(alwaysFree)}},
	{"R47", "ogx-ai/ogx#5122; open-webui/open-webui#29064; wso2/api-platform#2932", []site{
		cost("gemini/stream.sse", "anthropic/stream.sse"),
		{zones: []string{"key all\nalgorithm fixed_window\nlimit 1000 1h\nunit tokens"}, upstream: asksModel,
			asks: []ask{{n: 2, line: "POST /v1/chat/completions " + prompt,
				headers: "X-Answer: openai-chat/plain.json", want: "200×2"}},
			check: func(v *visit) {
				v.awaitUsed(v.id, 70)
			}}}},
}

// usedAndHeld returns what a limit of tokens has used, and what it holds.
func (v *visit) usedAndHeld(prefix string) string {
	v.Helper()
	return cluster.Query[string](v, v.dsn, `SELECT concat_ws(' ', coalesce(sum(count), 0),
		coalesce(sum(held), 0)) FROM rate_limit_counters($1, true)`, prefix)
}

// awaitUsed waits until a limit of tokens has used a number and holds nothing.
func (v *visit) awaitUsed(prefix string, want int64) {
	v.Helper()
	v.Await(fmt.Sprintf("%s: %d tokens are used", prefix, want), func() bool {
		return v.usedAndHeld(prefix) == fmt.Sprint(want, " 0")
	})
}
