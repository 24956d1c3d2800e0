package serve

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// settleWithin is the time for which a settlement waits for others, with which it takes the interpreter less
// time. It may then wait gatherTime in the ledger (store/ledger/send.go), for a transaction with others.
const settleWithin = 10 * time.Millisecond

// fewRunning is the number of requests that run, or were decided together, up to which none waits: a client
// that sends one request after another then finds the last one settled.
const fewRunning = 8 // as in the ledger (store/ledger/send.go)

// settleSoon settles the request in another goroutine, together with others.
func (s *Settling) settleSoon() {
	site := s.site
	site.mu.Lock()
	defer site.mu.Unlock()
	if site.waiting = append(site.waiting, s); len(site.waiting) == 1 {
		time.AfterFunc(settleWithin, func() { site.settleWaiting() })
	}
}

// settleWaiting settles the requests that wait: together, or after a panic one by one.
func (s *Site) settleWaiting() {
	s.mu.Lock()
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	var all []*Settling
	for _, runner := range waiting {
		one := runner.(*Settling)
		if one.mu.TryLock() {
			all = append(all, one)
		} else { // so that nobody waits for another with one of them
			one.settleSoon()
		}
	}
	failure := batch.PanicError(func() { settle(all...) })
	for _, one := range all {
		if failure != nil {
			alone := one
			_ = batch.PanicError(func() { settle(alone) })
		}
		one.mu.Unlock()
	}
}

// settle settles requests, unless that was done. The caller holds their mutexes. It and its steps are loops,
// because the interpreter takes long for each call. If it panics, each of several can be settled by itself.
func settle(all ...*Settling) {
	unregisters := len(all) == 1 // of several, a panic leaves each to settleWaiting, which settles it alone
	defer func() {
		if unregisters {
			unregister(all)
		}
	}()
	var rest []*Settling
	for _, s := range all {
		if !s.settled {
			rest = append(rest, s)
		}
	}
	setCosts(rest)
	setUnits(rest)
	var bills []*batch.Bill
	for _, s := range rest {
		if s.settled = true; len(s.bill.Charges) > 0 {
			bills = append(bills, s.bill)
		}
	}
	if len(bills) > 0 {
		if inStore, ok := rest[0].site.Store.(settler); ok {
			inStore.Settle(bills...)
		}
	}
	unregisters = true
	for _, s := range rest {
		if s.site.OnUsage != nil {
			s.reportUsage()
		}
		reports := s.site.History != nil || s.site.OnSettled != nil
		for i := range s.hits {
			one := &s.hits[i]
			if one.Limit != nil && (reports || one.err != nil) {
				s.report(one)
			}
		}
	}
}

// setUnits sets what the hits of requests have cost, and the charges of their bills. What a request costs in
// tokens is the charge without a report of the response. In money it has no bound by a quota.
func setUnits(all []*Settling) {
	for _, s := range all {
		s.bill.Charges = nil
		t := s.tokens
		for i := range s.hits {
			one := &s.hits[i]
			unit := one.source.Unit
			if one.Limit == nil {
				continue
			}
			one.err = nil
			if unit == "" {
				one.RealUnits, one.kind, one.err = s.costOf(one)
			} else {
				one.kind = t.kind
				if t.wrong != nil {
					one.err = option.Invalid(one.source.Text, t.wrong.Value, t.wrong.Want)
				}
				switch {
				case t.shares == nil:
					one.RealUnits = 0
				case t.estimated && (unit != option.Money || t.price == nil):
					one.RealUnits = one.Charged
				case unit == option.Money:
					one.RealUnits = (t.cost + 999) / 1000
				case unit == option.InputTokens:
					one.RealUnits = t.input
				case unit == option.OutputTokens:
					one.RealUnits = t.output
				default:
					one.RealUnits = t.input + t.output
				}
				if unit != option.Money && one.RealUnits > ratelimit.MaxEvents {
					one.RealUnits = ratelimit.MaxEvents
				}
			}
			switch {
			case one.kind != SettledSame: // a stream without usage is missing
			case one.RealUnits > one.Charged:
				one.kind = SettledMore
			case one.RealUnits < one.Charged:
				one.kind = SettledLess
			}
			charges := one.RealUnits != one.Charged
			if one.Limit.Reserves {
				charges = one.RealUnits > 0 ||
					one.Charged == 0 && (s.status < http.StatusBadRequest || s.status == clientLeft)
			}
			one.Excess = 0
			if unit == option.Money && t.shares != nil && t.price != nil {
				one.Excess = one.RealUnits*1000 - t.cost
			}
			one.storeEndsHold = charges && one.DecidedAt != 0
			if charges {
				s.bill.Charges = append(s.bill.Charges, one.Charge)
			}
		}
	}
}

// unregister releases the slots of requests, which has no effect on those that a settlement has ended, and
// removes the requests from those that run.
func unregister(all []*Settling) {
	var numbers []int64
	var running *host.Running
	for _, s := range all {
		s.settled = true
		for i := range s.hits {
			if one := &s.hits[i]; one.Hold != nil && !one.storeEndsHold {
				one.Hold.Release()
			}
		}
		if s.number == 0 {
			continue
		}
		running = s.site.running
		numbers = append(numbers, s.number)
		s.number = 0
		atomic.AddInt32(s.site.busy, -1)
		if s.tokens != nil {
			atomic.AddInt64(&s.site.Node.Running, -1)
		}
	}
	if running != nil {
		running.Remove(numbers...)
	}
}

// report records, counts and logs the settlement of a hit.
func (s *Settling) report(one *settledHit) {
	site := s.site
	prefix := one.Limit.Prefix
	if site.History != nil && !one.repeated {
		s.recorded.Prefix, s.recorded.Unit = prefix, one.Limit.Unit
		s.recorded.Units = one.RealUnits
		history.SetCost(site.History, &s.recorded)
	}
	if site.OnSettled != nil {
		site.OnSettled(prefix, one.kind)
	}
	if one.err == nil {
		return
	}
	sampler := &site.invalidCosts
	if one.kind == SettledMissing {
		sampler = &site.missingUsage
	}
	if dropped, ok := sampler.Allow(time.Now(), time.Minute); ok {
		site.Log(host.Line{Level: host.Warn, Text: "a request is charged an estimate", Prefix: prefix,
			Err: one.err, Dropped: dropped})
	}
}

// costOf returns the cost of a hit in the response, except in tokens. Without a valid one, it returns the
// charged cost.
func (s *Settling) costOf(one *settledHit) (int64, SettledCost, error) {
	source := one.source
	switch {
	case source.Bytes:
		return s.sent, SettledSame, nil
	case source.Statuses != nil:
		for _, status := range source.Statuses {
			if status == s.status {
				return source.Cost, SettledSame, nil
			}
		}
		if s.status == clientLeft {
			return one.Charged, SettledSame, nil
		}
		return source.Else, SettledSame, nil
	case s.status >= http.StatusInternalServerError:
		return 0, SettledSame, nil // an upstream that has failed has done nothing
	case source.Path != nil && s.body != nil && s.body.Invalid != "":
		return one.Charged, SettledInvalid,
			option.Invalid("settle "+source.Text, s.body.Invalid, "a body that can be read")
	case one.values == nil:
		return one.Charged, SettledMissing, nil
	}
	text := strings.Join(one.values, ", ")
	if cost, ok := parseCost(text, source.Path != nil); ok {
		return cost, SettledSame, nil
	}
	const maxShown = 40
	if len(text) > maxShown {
		text = text[:maxShown] + "…"
	}
	return one.Charged, SettledInvalid, option.Invalid("settle "+source.Text, text,
		"a whole number from 0 to 9007199254740992 in the response")
}
