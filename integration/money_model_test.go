package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// tokens counts tokens: input, input from a cache, input that is written to one, and output.
type tokens [4]int64

// priced is a model with its prices for a million tokens, in ten-thousandths.
type priced struct {
	name         string
	rates, above tokens
	from         int64 // above applies to more input than this
}

var pricedModels = []priced{
	{name: "small", rates: tokens{1500, 750, 1875, 6000}, from: 1 << 40},
	{name: "large", rates: tokens{25000, 12500, 31250, 100000}, from: 1 << 40},
	{name: "long", rates: tokens{12500, 3125, 16250, 100000}, from: 1000,
		above: tokens{25000, 6250, 31250, 150001}},
}

// largestOutput is the largest output of all models, and bounds what a request holds.
const largestOutput = 60

// cost returns the cost of tokens in billionths, rounded up.
func (p *priced) cost(n tokens) (sum int64) {
	rates := p.rates
	if n[0]+n[1]+n[2] > p.from {
		rates = p.above
	}
	for kind := range n {
		sum += n[kind] * rates[kind]
	}
	return (sum + 9) / 10
}

// question is a request to a model with a name of its own, which has its price by a pattern.
type question struct {
	name, kind, body   string
	model              *priced
	person, proxy      int
	whole              tokens // of the whole answer
	estimate, reserved int64
	// The account of the model, guarded by budgetBed.mu: the requests, and what was used and reported so far.
	arrivals, cost int64
	reported       tokens
	// The account of the client: when the request, the answer and its end were there, the status, which is 0
	// without an answer, and whether the budget is said to be used up.
	sent, began, done time.Time
	status            int
	told              bool
}

// answerKinds has the kinds of answers: JSON; streams; streams that break off without a report; streams that
// report what was used so far, and that their clients leave; and failures, which are free.
var answerKinds = []string{"json", "json", "json", "stream", "stream", "broken", "left", "fails"}

// next returns a new question. Some answers cost more than it holds. The caller holds the mutex.
func (b *budgetBed) next(proxy int) *question {
	pick := b.random.Int64N
	q := &question{kind: answerKinds[pick(8)], proxy: proxy, model: &pricedModels[pick(3)]}
	for q.person = int(pick(16)); int(pick(4)) > q.person%4; q.person = int(pick(16)) { // some ask more
	}
	q.name = fmt.Sprint(q.model.name, "-", len(b.questions))
	input, output := 50+pick(350), 4+pick(12)
	if q.model.name == "long" {
		input *= 5
	}
	read, written := pick(input/3), pick(input/3)
	q.whole = tokens{input - read - written, read, written, output}
	named := []int64{output/2 + 1, 2 * output, 3 * output, 1000 * output}[pick(4)]
	q.body = fmt.Sprintf(`{"model":%q,"max_tokens":%d,"messages":[%q]}`, q.name, named,
		strings.Repeat("x", int(input*(3+pick(3)))))
	q.estimate, named = int64(len(q.body)+3)/4, min(named, largestOutput)
	q.reserved = max(q.model.cost(tokens{q.estimate, 0, 0, named}),
		q.model.cost(tokens{0, 0, q.estimate, named}))
	q.reserved = (q.reserved + 999) / 1000 * 1000 // a limit counts millionths
	b.questions[q.name] = q
	return q
}

// ServeHTTP is the model, and keeps its own account of what each answer costs.
func (b *budgetBed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct{ Model string }
	text, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(text, &body) != nil {
		return
	}
	b.mu.Lock()
	q := b.questions[body.Model]
	q.arrivals++
	b.mu.Unlock()
	report := func(n tokens) string { // before the proxy can have it
		b.mu.Lock()
		defer b.mu.Unlock()
		q.reported, q.cost = n, q.model.cost(n)
		return fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":`+
			`{"cached_tokens":%d,"cache_write_tokens":%d}}`, n[0]+n[1]+n[2], n[3], n[1], n[2])
	}
	pause := time.Duration(q.whole[0]%100) * time.Millisecond
	switch q.kind {
	case "fails":
		w.WriteHeader(http.StatusInternalServerError)
		return
	case "json":
		time.Sleep(pause)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"choices":[],%s}`, report(q.whole))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	sent := q.whole
	for sent[3] = 1; sent[3] <= q.whole[3]; sent[3]++ {
		usage := `"usage":null`
		if q.kind == "left" {
			usage = report(sent)
		}
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}],%s}\n\n", usage)
		_ = http.NewResponseController(w).Flush()
		time.Sleep(2 * pause / time.Duration(q.whole[3]))
		switch half := sent[3] == q.whole[3]/2; {
		case half && q.kind == "left":
			<-r.Context().Done()
			return
		case half && q.kind == "broken":
			report(tokens{q.estimate, 0, 0, sent[3]})
			time.Sleep(50 * time.Millisecond) // what was sent arrives
			panic(http.ErrAbortHandler)
		}
	}
	_, _ = fmt.Fprintf(w, "data: {\"choices\":[],%s}\n\ndata: [DONE]\n\n", report(q.whole))
}

// read reads an answer to its end, or until the client leaves.
func (q *question) read(body io.Reader) {
	lines := bufio.NewScanner(body)
	for n := int64(0); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), `data: {"choices":[{`) {
			n++
		}
		if q.kind == "left" && n == q.whole[3]/2 {
			return
		}
	}
}
