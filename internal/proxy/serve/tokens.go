package serve

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// tokens reads the usage of a response for limits of tokens and money.
type tokens struct {
	prompt   int64         // the estimated tokens of the prompt
	price    *policy.Price // nil without one, or without upload
	upload   *Upload       // nil without one
	counts   bool          // the usage counts: the request is a POST
	enforced bool          // one of the limits is enforced
	reader   *usage.Reader // nil before it reads the response
	usage    usage.Usage   // set at the end of the response

	// Set by setCosts, and its steps estimate, setShares and setLines.
	shares      []priced              // what the response has cost, by model; nil if it is free
	serviceTier string                // of the prices
	estimated   bool                  // all of shares is an estimate
	kind        SettledCost           // SettledSame, or why the usage is missing
	wrong       *ratelimit.FieldError // the same for the log; nil for SettledSame

	// Set by setLines: what shares have together.
	input  int64 // tokens
	output int64 // tokens
	cost   int64 // in billionths
}

// unitsOf reports whether the terms of a policy have enforced limits of tokens or money, enforced limits in
// money, and limits in money of shadow rules.
func unitsOf(terms []*policy.Terms) (tokens, money, shadowMoney bool) {
	tokens, money, shadowMoney = false, false, false
	for _, t := range terms {
		if t.CostSource == nil || t.CostSource.Unit == "" {
			continue
		}
		inMoney := t.CostSource.Unit == option.Money
		tokens = tokens || !t.Shadow
		money = money || inMoney && !t.Shadow
		shadowMoney = shadowMoney || inMoney && t.Shadow
	}
	return tokens, money, shadowMoney
}

// setBills sets the bills of requests on limits of tokens, without their costs. The day of a bill is that of
// the server at the decision. Without one, it is that of the proxy, by the last estimate of the server's
// clock.
func setBills(all []*Request, bills []*batch.Bill) {
	at := make([]int64, len(all))
	for k, q := range all {
		at[k] = time.Now().UnixMicro()
		decided := int64(0)
		for i := range q.Decisions {
			if d := q.Decisions[i].DecidedAt; d > decided {
				decided = d
			}
		}
		if decided == 0 {
			decided = at[k] + q.Site.Clock.Ahead(nil, time.Time{})*1000000
		}
		if q.Upload != nil && q.Upload.prices.At != 0 {
			at[k] = q.Upload.prices.At
		}
		one := bills[k]
		one.Day = decided / (24 * 3600 * 1000000)
		v := &q.Verdict
		if q.HasVerdict && v.User != "" {
			one.User, one.KeyID = v.User, v.KeyID
		} else if q.HasVerdict || q.Site.UserOf != nil {
			one.User, one.KeyID = senderOf(q)
		}
		if id := v.Identity; q.HasVerdict && id != nil && one.User == id.User {
			if id.UserCountedAs != "" { // as policy.CountsAs does
				one.User = id.UserCountedAs
			}
			for id.Parent != nil {
				id = policy.ParentOf(id)
				one.Ancestors = append(one.Ancestors, policy.CountsAs(id.User, id.UserCountedAs))
			}
		}
	}
	for k, id := range batch.BillIDs(at...) {
		bills[k].ID = id
	}
}

// noticeOf returns the notice of a hit on a limit that has notices.
func noticeOf(t *policy.Terms, l *ratelimit.Limit, key string) *batch.Notice {
	return &batch.Notice{Limit: l, Key: key, Unit: string(t.CostSource.UnitOf()), Quota: t.Quota,
		Percents: t.Notify}
}

// notify makes notices of the limits of requests for which one of the requests reaches a percentage.
func notify(all []*Request) {
	if len(all) == 0 {
		return
	}
	inPostgres, ok := all[0].Site.Store.(*store.Store) // all sites share it
	if !ok {
		return
	}
	for _, q := range all {
		for i := range q.Hits {
			t := q.Terms[i]
			h := &q.Hits[i]
			d := &q.Decisions[i]
			if t.Notify == nil || h.Limit.Reserves || d.DecidedAt == 0 {
				continue
			}
			used := float64(t.Quota-d.Remaining) * 100
			for _, percent := range t.Notify {
				at := float64(t.Quota) * float64(percent)
				// What is used beyond the quota is unknown here.
				if used >= at && used-float64(h.Cost)*100 < at || percent > 100 && d.Remaining == 0 {
					inPostgres.Notify(noticeOf(t, h.Limit, h.StoredKey()))
					break
				}
			}
		}
	}
}

// priced has the cost of a model, with its price.
type priced struct {
	usage.Share
	price         *policy.Price // nil if neither the model nor that of the request has one
	input, output int64         // how much of the parts is an estimate
}

// setCosts reads what is left of responses, and sets what they have cost, and the lines of their bills. A
// response costs nothing if the upstream has refused the request, the estimate if it does not report its
// usage, or else the usage.
func setCosts(all []*Settling) {
	var counted, read, reports []*Settling
	for _, s := range all {
		if s.body != nil {
			s.body.End()
		}
		if s.tokens != nil {
			counted = append(counted, s)
			if s.header != nil {
				read = append(read, s)
			}
		}
	}
	readStarts(read...)
	readers := make([]*usage.Reader, len(read))
	for i, s := range read {
		readers[i] = s.tokens.reader
	}
	for i, u := range usage.End(readers...) {
		read[i].tokens.usage = u
	}
	for _, s := range counted {
		t := s.tokens
		u := &t.usage
		reported := t.counts && u.Reported
		t.kind = SettledSame
		switch {
		case s.status == clientLeft:
			s.estimate()
		case s.status == http.StatusNotModified || s.status >= http.StatusBadRequest && !reported:
		case !t.counts:
			s.estimate()
		case u.PromptOnly || u.Failed:
		case u.Invalid != "":
			t.kind = SettledInvalid
			t.wrong = &ratelimit.FieldError{Value: u.Invalid, Want: "a response that can be read"}
			s.estimate()
		case !reported && !u.Stream:
			s.estimate()
			if !s.gone {
				t.miss()
			}
		default:
			if !reported {
				t.miss()
			}
			reports = append(reports, s)
		}
	}
	setShares(reports)
	setLines(counted)
}

// miss says that the response does not report its usage.
func (t *tokens) miss() {
	t.kind = SettledMissing
	t.wrong = &ratelimit.FieldError{Want: "in the response: for a stream, clients of OpenAI ask for it " +
		"with stream_options.include_usage"}
}

// setShares sets what responses report, by the models that they name, and first the request's own. The
// estimate stands for an input that was not reported.
func setShares(all []*Settling) {
	for _, s := range all {
		t := s.tokens
		u := &t.usage
		own := priced{usage.Share{Parts: u.Parts}, t.price, 0, u.Sent}
		if u.Parts[option.Input] == usage.Unreported {
			own.input = t.prompt
			own.Parts[option.Input] = t.prompt
		}
		if u.Parts[option.Output] == usage.Unreported {
			own.Parts[option.Output] = 0
		}
		own.Parts[option.Output] += u.Sent
		own.Parts[option.Request] = 1
		t.shares = []priced{own}
		for _, also := range u.Also {
			price := t.price
			if t.upload != nil {
				if its := t.upload.prices.Of(also.Model); its != nil {
					price = its
				}
			}
			t.shares = append(t.shares, priced{also, price, 0, 0})
		}
		t.serviceTier = u.ServiceTier
		if t.serviceTier == "" && t.price != nil {
			t.serviceTier = policy.StandardServiceTier
			if asked := t.upload.Prompt.ServiceTier; asked != "" {
				t.serviceTier = t.price.Dearer(own.Parts, asked)
			}
		}
	}
}

// setLines sets the lines of bills, and what they cost together: each has what it adds to the sum of those
// before, so that their sum is rounded once.
func setLines(all []*Settling) {
	for _, s := range all {
		t := s.tokens
		b := s.bill
		b.Lines = nil
		t.input, t.output = 0, 0
		if t.serviceTier != "" && t.serviceTier != policy.StandardServiceTier {
			b.ServiceTier = history.CleanText(t.serviceTier, maxServiceTier)
		}
		model := ""
		if t.upload != nil {
			model = t.upload.Prompt.Model
		}
		if answered := t.usage.Model; answered != "" && answered != model {
			answered = history.CleanText(option.ModelName(answered), maxModel)
			if answered != model {
				b.Answered = answered
			}
		}
		total := &policy.Total{}
		for i := range t.shares {
			one := &t.shares[i]
			if i > 0 {
				model = history.CleanText(option.ModelName(one.Model), maxModel)
			}
			p := one.Parts
			t.input += p[option.Input] + p[option.CacheRead] + p[option.CacheWrite] + p[option.CacheWrite1h] +
				p[option.AudioInput] + p[option.AudioCacheRead] + p[option.ImageInput]
			t.output += p[option.Output] + p[option.AudioOutput] + p[option.ImageOutput]
			line := batch.Line{Model: model, EstimatedInput: one.input, EstimatedOutput: one.output,
				Input: p[option.Input], CacheRead: p[option.CacheRead], CacheWrite: p[option.CacheWrite],
				CacheWrite1h: p[option.CacheWrite1h], Output: p[option.Output],
				AudioInput: p[option.AudioInput], AudioCacheRead: p[option.AudioCacheRead],
				AudioOutput: p[option.AudioOutput], ImageInput: p[option.ImageInput],
				ImageOutput: p[option.ImageOutput], Search: p[option.Search]}
			if one.price != nil {
				if one.price.Model != model {
					line.Price = one.price.Model
				}
				line.PriceValid = one.price.Valid
				cost := total.Add(one.price.Cost(p, t.serviceTier))
				line.Money = batch.Exact(cost)
				if one.input+one.output > 0 {
					line.EstimatedMoney = one.estimates(cost, t.serviceTier)
				}
			}
			b.Lines = append(b.Lines, line)
		}
		t.cost = total.Billionths
	}
}

// estimates returns what the estimates add to a cost in billionths.
func (one *priced) estimates(cost int64, serviceTier string) json.Number {
	reported := one.Parts
	part := option.Input
	// The dearest estimate may have the prompt as CacheWrite: see policy.Price.Estimate.
	if reported[part] < one.input {
		part = option.CacheWrite
	}
	reported[part] -= one.input
	reported[option.Output] -= one.output
	added := cost - policy.Billionths(one.price.Cost(reported, serviceTier))
	if added <= 0 { // a step with lower prices
		return ""
	}
	return batch.Exact(added)
}

// The longest names in the ledger, in bytes.
const (
	maxModel       = 256
	maxServiceTier = 40
)

// Usage is the usage that a response reports under limits of tokens or money.
type Usage struct {
	Model  string           // the model of its price; "" without a price
	Tokens map[string]int64 // by kind: one of TokenKinds
	Money  int64            // the cost in billionths
}

// TokenKinds lists the kinds of tokens.
var TokenKinds = option.PartNames[:option.Search]

// reportUsage calls Site.OnUsage, which is not nil, with the usage that the response has reported.
func (s *Settling) reportUsage() {
	if s.tokens == nil || !s.tokens.usage.Reported {
		return
	}
	used := &Usage{Tokens: map[string]int64{}}
	for _, share := range append([]usage.Share{{Parts: s.tokens.usage.Parts}}, s.tokens.usage.Also...) {
		for i, kind := range TokenKinds {
			if n := share.Parts[i]; n > 0 {
				used.Tokens[kind] += n
			}
		}
	}
	if p := s.tokens.price; p != nil {
		used.Model = p.Model
		used.Money = s.tokens.cost
	}
	s.site.OnUsage(used)
}
