package serve

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// tokens reads the usage of a response for limits of tokens.
type tokens struct {
	input    int64         // the estimate of the input, as charged
	counts   bool          // the usage counts: the request is a POST
	enforced bool          // one of the limits is enforced
	reader   *usage.Reader // nil before the response
	usage    usage.Usage   // set at the end of the response
}

// holds reports whether the end of the response has to read what the reader holds, which takes time.
func (t *tokens) holds() bool { return t.reader != nil && t.reader.Holds() }

// isUpgrade reports whether a request asks for another protocol, in which usage cannot be read.
func isUpgrade(r *http.Request) bool {
	return len(r.Header["Upgrade"]) > 0 || r.Method == http.MethodConnect
}

// isFreeOfTokens reports whether limits of tokens do not charge a request. An upgrade is refused instead.
func isFreeOfTokens(r *http.Request) bool { return policy.FreeOfTokens(r.Method) && !isUpgrade(r) }

// chargeTokens sets the costs of the policy's hits on limits of tokens. hits are the hits of the request so
// far, and the policy's are the last.
func chargeTokens(q *Request, hits []ratelimit.Hit) {
	marks := q.Verdict.Marks
	first := len(hits) - len(marks)
	for i, m := range marks {
		if m.Settle.CountsTokens() {
			hits[first+i].Cost = chargeOf(q, m.Settle, m.Quota)
		}
	}
}

// newBill returns the settlement of a request on limits of tokens, without its cost.
func newBill(q *Request) *batch.Bill {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	text := hex.EncodeToString(id[:])
	one := &batch.Bill{Day: time.Now().Unix() / (24 * 3600),
		ID: text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]}
	if q.Upload != nil {
		one.Model = q.Upload.Prompt.Model
	}
	one.User, one.KeyID = senderOf(q)
	return one
}

// tokensOf returns the cost of a hit on a limit of tokens. Without a report of the response, the cost is the
// charge, or 0 if the upstream has refused the request.
func (s *Settling) tokensOf(one *settledHit) (int64, SettledCost, error) {
	u := &s.tokens.usage
	if s.tokens.reader == nil { // there was no response, or an outer handler will send it
		u.Input, u.CacheRead, u.CacheWrite, u.Output = -1, -1, -1, -1
	}
	reported := s.tokens.counts && u.Reported()
	wrong := &ratelimit.FieldError{Field: one.how.Text}
	switch {
	case s.status == clientLeft:
		return one.cost, SettledSame, nil
	case s.status == http.StatusNotModified || s.status >= http.StatusBadRequest && !reported:
		return 0, SettledSame, nil
	case !s.tokens.counts:
		return one.cost, SettledSame, nil
	case u.PromptOnly:
		return 0, SettledSame, nil
	case u.Invalid != "":
		wrong.Value = u.Invalid
		wrong.Want = "a response that can be read"
		return one.cost, SettledInvalid, wrong
	case !reported && !u.Stream && s.client.Err() != nil:
		return one.cost, SettledSame, nil
	}
	kind := SettledSame
	var err error
	if !reported {
		kind = SettledMissing
		wrong.Want = "in the response: for a stream, clients of OpenAI ask for it with " +
			"stream_options.include_usage"
		err = wrong
	}
	if !reported && !u.Stream {
		return one.cost, kind, err
	}
	return cost(u, one.how.Unit, s.tokens.input), kind, err
}

// cost returns the tokens of a unit. input stands for an input that was not reported.
func cost(u *usage.Usage, unit option.Unit, input int64) int64 {
	if u.Input != usage.Unreported {
		input = u.Input
	}
	if u.CacheWrite != usage.Unreported {
		input += u.CacheWrite
	}
	output := u.Sent
	if u.Output != usage.Unreported {
		output += u.Output
	}
	n := input + output
	switch {
	case unit == option.InputTokens:
		n = input
	case unit == option.OutputTokens:
		n = output
	case u.CacheRead != usage.Unreported:
		n += u.CacheRead
	}
	if n > ratelimit.MaxEvents {
		n = ratelimit.MaxEvents
	}
	return n
}
