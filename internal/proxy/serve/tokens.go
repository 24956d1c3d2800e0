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

// tokens reads the usage of a response for limits of tokens and money.
type tokens struct {
	input    int64         // the estimate of the input, as charged
	output   int64         // the largest estimate of the output
	price    *policy.Price // nil without one
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
		if !m.Settle.CountsTokens() {
			continue
		}
		h := &hits[first+i]
		h.Cost = chargeOf(q, m.Settle, m.Quota)
		// A shadow rule does not refuse a request without a price, so it does not count it either.
		h.Peek = m.Shadow && m.Settle.Unit == option.Money && q.price == nil
	}
}

// tokenUnits says on which limits the hits of a policy are.
type tokenUnits struct {
	tokens      bool // enforced limits of tokens or money
	money       bool // enforced limits in money
	shadowMoney bool // limits in money of shadow rules
}

// tokenUnitsOf returns the tokenUnits of the hits of a policy.
func tokenUnitsOf(marks []*policy.Mark) tokenUnits {
	var units tokenUnits
	for _, m := range marks {
		if !m.Settle.CountsTokens() {
			continue
		}
		money := m.Settle.Unit == option.Money
		if m.Shadow {
			units.shadowMoney = units.shadowMoney || money
			continue
		}
		units.tokens = true
		units.money = units.money || money
	}
	return units
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
	if id := q.Verdict.Sender; q.Asked && id != nil && one.User == id.User {
		one.User = id.CountsAs()
		for _, above := range id.Ancestors {
			one.Ancestors = append(one.Ancestors, above.CountsAs())
		}
	}
	return one
}

// noticeOf returns the notice of a hit on a limit, or nil if the limit has none.
func noticeOf(m *policy.Mark, l *ratelimit.Limit, key string) *batch.Notice {
	if m == nil || m.Notify == nil || m.Quota == 0 {
		return nil
	}
	return &batch.Notice{Limit: l, Key: key, Unit: string(m.Settle.UnitOf()), Quota: m.Quota,
		Percents: m.Notify}
}

// notify makes notices of the limits of requests for which a request reaches a percentage.
func notify(q *Request) {
	store, ok := q.Site.Store.(notifier)
	if !ok {
		return
	}
	for i := range q.Hits {
		h := &q.Hits[i]
		d := &q.Decisions[i]
		m := MarkOf(q, i)
		if m == nil || m.Notify == nil || h.Limit.Reserves || d.DecidedAt == 0 {
			continue
		}
		used := float64(m.Quota-d.Remaining) * 100
		for _, percent := range m.Notify {
			at := float64(m.Quota) * float64(percent)
			// What is used beyond the quota is unknown here.
			if used >= at && used-float64(h.Cost)*100 < at || percent > 100 && d.Remaining == 0 {
				store.Notify(noticeOf(m, h.Limit, h.StoredKey()))
				break
			}
		}
	}
}

// notifier is a store that makes notices.
type notifier interface{ Notify(n *batch.Notice) }

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
		return s.estimateOf(one), SettledSame, nil
	case s.status == http.StatusNotModified || s.status >= http.StatusBadRequest && !reported:
		return 0, SettledSame, nil
	case !s.tokens.counts:
		return s.estimateOf(one), SettledSame, nil
	case u.PromptOnly:
		return 0, SettledSame, nil
	case u.Invalid != "":
		wrong.Value = u.Invalid
		wrong.Want = "a response that can be read"
		return s.estimateOf(one), SettledInvalid, wrong
	case !reported && !u.Stream && s.client.Err() != nil:
		return s.estimateOf(one), SettledSame, nil
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
		return s.estimateOf(one), kind, err
	}
	return cost(u, one.how.Unit, s.tokens), kind, err
}

// estimateOf returns the cost of a hit without a report of the response: the charge, or in money what the
// request may cost, which no quota bounds.
func (s *Settling) estimateOf(one *settledHit) int64 {
	t := s.tokens
	if one.how.Unit != option.Money || t.price == nil {
		return one.cost
	}
	return t.price.Estimate(t.input, t.output)
}

// cost returns the units of a response. The estimate stands for an input that was not reported.
func cost(u *usage.Usage, unit option.Unit, t *tokens) int64 {
	input := t.input
	if u.Input != usage.Unreported {
		input = u.Input
	}
	output := u.Sent
	if u.Output != usage.Unreported {
		output += u.Output
	}
	read, written := u.CacheRead, u.CacheWrite
	if read == usage.Unreported {
		read = 0
	}
	if written == usage.Unreported {
		written = 0
	}
	n := input + read + written + output
	switch unit {
	case option.InputTokens:
		n = input + written
	case option.OutputTokens:
		n = output
	case option.Money:
		n = t.price.Cost(input, read, written, output)
	}
	if n > ratelimit.MaxEvents {
		n = ratelimit.MaxEvents
	}
	return n
}

// Used is the usage that a response reports under limits of tokens or money.
type Used struct {
	Model  string           // the model of its price; "" without a price
	Tokens map[string]int64 // by kind: one of UsedKinds
	Money  int64            // the cost in millionths
}

// UsedKinds lists the kinds of tokens.
var UsedKinds = []string{"input", "cache_read", "cache_write", "output"}

// tellUsed calls Site.Used with the usage that the response has reported.
func (s *Settling) tellUsed() {
	if s.site.Used == nil || s.bill == nil || s.tokens.reader == nil || !s.tokens.usage.Reported() {
		return
	}
	used := &Used{Tokens: map[string]int64{}}
	for i, n := range []int64{s.bill.Input, s.bill.CacheRead, s.bill.CacheWrite, s.bill.Output} {
		if n > 0 {
			used.Tokens[UsedKinds[i]] = n
		}
	}
	if p := s.tokens.price; p != nil {
		used.Model = p.Model
		used.Money = s.bill.Money
	}
	s.site.Used(used)
}
