//go:build soak

package integration

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// exactWithin is the time after a fault until limits are exact (docs/operating.md), plus a timeout.
	exactWithin = 3*time.Second + soakTimeout
	// The audit log may lack requests of the last lostByKill before a kill, and the metrics requests of the
	// last lostTotals (docs/operating.md). Both include time for a busy machine.
	lostByKill, lostTotals = 3 * time.Second, 12 * time.Second
	// localShare is the number of requests that a proxy may admit locally: its share of the quota, rounded
	// up, plus one.
	localShare = 100/soakProxies + 2
	// lostByCrash is the time that a crash of Postgres may lose without synchronous_commit.
	lostByCrash = time.Second
	// slotsFree is the time until slots of lost requests are free, plus a timeout.
	slotsFree = 10*time.Second + soakTimeout
	// Without a fault, one of sentPerLate requests may time out, and a proxy may decide nothing for
	// maxBlackout seconds. What happens while the machine is busy does not count.
	sentPerLate, maxBlackout = 1000, 2
)

// overlaps reports whether something between two times may be due to the event.
func (e *event) overlaps(from, to time.Duration) bool {
	return from <= e.ended+exactWithin && to >= e.began
}

// judgeResponses checks that for each wrong or late response, there was a fault at that time that may have
// such an effect according to the documents.
func (s *soak) judgeResponses() {
	late, wrong := 0, 0
	for i := range s.load.odds {
		o := &s.load.odds[i]
		if s.isExplained(o) {
			continue
		}
		busy := s.busy(o.began, o.ended)
		// An overloaded proxy refuses whatever on_error is.
		overloaded := o.lane.onError != "" && o.ended-o.began >= (health.MaxTimeouts-1)*soakTimeout
		undecided := o.status == http.StatusServiceUnavailable && (o.lane.onError == "deny" || overloaded)
		if undecided {
			s.unexplained = append(s.unexplained, o)
		}
		if busy && (undecided || o.status == statusSlow) {
			continue
		}
		count := &wrong
		if undecided {
			count = &late
		}
		if *count++; *count <= 20 {
			s.t.Logf("%v: %s/%s: %s after %v", o.began.Round(time.Millisecond), s.proxies[o.proxy].name,
				o.lane.name, o.what, (o.ended - o.began).Round(time.Millisecond))
		}
	}
	for _, e := range s.events {
		fmt.Printf("%6v  %s: explains %d responses\n", e.began.Round(100*time.Millisecond), e.fault.name,
			e.explained)
	}
	fmt.Printf("soak: %d responses that only a fault explains, %d too late without one on a busy machine, "+
		"%d on one that is not, %d wrong\n",
		len(s.load.odds)-len(s.unexplained)-wrong, len(s.unexplained)-late, late, wrong)
	if wrong > 0 || late > s.load.sent/sentPerLate {
		s.t.Errorf("%d responses are wrong, and %d of %d had no decision although nothing was wrong", wrong,
			late, s.load.sent)
	}
	for i := range s.load.recorded {
		r, blackout := &s.load.recorded[i], 0
		for second := range int(time.Since(s.load.began) / time.Second) {
			at := time.Duration(second) * time.Second
			overlaps := func(e *event) bool { return e.overlaps(at, at+time.Second) }
			isDue := slices.ContainsFunc(s.events, overlaps) || s.busy(at, at+time.Second)
			if r.undecided[second] > r.decided[second] && !isDue {
				blackout++
			} else {
				blackout = 0
			}
			if blackout > maxBlackout {
				s.t.Errorf("%s decides nothing at %v, although nothing is wrong", s.proxies[i].name, at)
			}
		}
	}
}

// busy reports whether the machine was busy between from and to, or up to a second before or after.
func (s *soak) busy(from, to time.Duration) bool {
	return slices.ContainsFunc(s.load.busy, func(b span) bool {
		return b.began <= to+time.Second && b.ended >= from-time.Second
	})
}

// isExplained reports whether a fault explains a response.
func (s *soak) isExplained(o *oddResponse) bool {
	for _, e := range s.events {
		if e.overlaps(o.began, o.ended) && e.mayExplain(o) {
			e.explained++
			return true
		}
	}
	return false
}

// mayExplain reports whether the event may have caused the response, which overlaps it in time.
func (e *event) mayExplain(o *oddResponse) bool {
	dead := e.proxy == o.proxy && o.began <= e.ended
	switch {
	case o.unheard && e.fault.reloads:
		return o.proxy == e.choice%soakProxies
	case e.proxy >= 0 && e.proxy != o.proxy:
		return false
	case o.status == statusSlow:
		// A look-up may also wait for that long.
		return (e.fault.delays || o.lane.governed) &&
			o.ended-o.began <= health.MaxTimeouts*soakTimeout+soakMargin
	case o.status == http.StatusServiceUnavailable:
		return (o.lane.onError == "deny" || e.fault.overloads && o.lane.onError != "") &&
			(e.lane == nil || e.lane == o.lane) && (!e.fault.decides || e.proxy >= 0)
	case o.status == http.StatusNotFound:
		return dead // Traefik listens before it has its configuration
	case o.status == statusEnded:
		return o.lane.flights && e.clock
	}
	return dead && o.status == 0 && o.what != undecidedAdmission
}

// judgeAdmissions compares the admissions of each key with its quota.
func (s *soak) judgeAdmissions() {
	keys, exact := 0, 0
	for name, u := range s.load.uses {
		if u.lane.quota == 0 || len(u.admitted) == 0 {
			continue
		}
		keys++
		u.last = max(u.last, u.admitted[len(u.admitted)-1])
		got, limit, why := len(u.admitted), u.lane.quota, []string(nil)
		limit += int(math.Ceil(u.lane.refill * (u.last - u.first + time.Second).Seconds()))
		quiet := true
		for _, e := range s.events {
			if !e.overlaps(u.first, u.last) {
				continue
			}
			quiet = quiet && e.fault.decides && e.proxy < 0
			if more := s.allowance(e, u); more > 0 {
				limit += more
				why = append(why, fmt.Sprintf("%d more by %q", more, e.fault.name))
			}
		}
		if u.lane.onError == "local" {
			for i := range s.proxies {
				overlaps := func(o *oddResponse) bool {
					return o.proxy == i && o.began <= u.last && o.ended >= u.first
				}
				if u.slow[i] || slices.ContainsFunc(s.unexplained, overlaps) {
					limit += localShare
					why = append(why, "more by a late decision of "+s.proxies[i].name)
				}
			}
		}
		if got > limit {
			s.t.Errorf("%s, from %v to %v: %d were admitted, want %d at most %v", name,
				u.first.Round(time.Millisecond), u.last.Round(time.Millisecond), got, limit, why)
		}
		// With a demand far above the quota, all of it is used. A lease may lose what a process holds.
		if u.sent < 2*u.lane.quota || u.lane.refill > 0 || u.lane.responses {
			continue
		}
		minimum := u.lane.quota
		if u.lane.leased {
			minimum -= u.lane.quota * 15 / 100
		}
		if quiet {
			exact++
			if got+u.undecided < minimum {
				s.t.Errorf("%s, without a fault: %d of %d requests were admitted, want at least %d", name,
					got, u.sent, minimum)
			}
		}
	}
	fmt.Printf("soak: %d keys, %d of them used up without a fault\n", keys, exact)
	if keys == 0 || exact == 0 && len(s.events) > 20 {
		s.t.Errorf("no key was used up without a fault: the load is too small")
	}
}

// judgeFlights compares the requests in flight with the limit. In the end, all slots are free.
func (s *soak) judgeFlights() {
	l := &lanes[slices.IndexFunc(lanes, func(l lane) bool { return l.flights })]
	full, concurrent, wrong := 0, 0, []string(nil)
	for _, a := range s.load.arrivals {
		limit := l.quota
		for _, e := range s.events {
			if e.overlaps(a.at, a.at) {
				limit += s.allowance(e, &use{lane: l})
			}
		}
		concurrent = max(concurrent, a.requests)
		if a.requests > limit {
			wrong = append(wrong, fmt.Sprintf("%d at %v, want %d at most", a.requests,
				a.at.Round(time.Millisecond), limit))
		}
		if a.requests == l.quota {
			full++
		}
	}
	fmt.Printf("soak: %d requests in flight, at most %d concurrently; %d of them took the last slot\n",
		len(s.load.arrivals), concurrent, full)
	if len(wrong) > 0 {
		s.t.Errorf("too many requests were in flight, %d times: %v", len(wrong), wrong[:min(20, len(wrong))])
	}
	if full <= len(s.load.arrivals)/10 {
		s.t.Errorf("too few requests took the last slot: the load is too small")
	}
	held := "SELECT coalesce(sum(" +
		strings.ReplaceAll(algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight}).SQL.PeekReturned,
			"{processes}", "rate_limit_processes") + "), 0)::bigint FROM " + l.table() + " WHERE prefix = $1"
	n, until := int64(1), time.Now().Add(slotsFree)
	for ; n > 0 && time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		n = cluster.Query[int64](s.t, s.servers.dsn, held, l.name)
	}
	if n > 0 {
		s.t.Errorf("%d slots are held %v after the last request, want 0", n, slotsFree)
	}
}

// allowance returns the number of requests that a fault may have admitted beyond the quota of a key.
func (s *soak) allowance(e *event, u *use) (more int) {
	l := u.lane
	if !l.durable {
		more += e.crashes * l.quota
	}
	if e.dropped == l.table() {
		more += l.quota
	}
	if l.async && e.crashes > 0 {
		for _, at := range u.admitted {
			if at >= e.began-lostByCrash && at <= e.ended {
				more++
			}
		}
	}
	if e.clock && (l.refill > 0 || l.flights) {
		// A bucket that was created while the clock was back is full again, and slots of that time have
		// expired.
		more += l.quota
	}
	if l.onError == "local" && !e.fault.decides && (e.lane == nil || e.lane == l) {
		more += soakProxies * localShare
	}
	return more
}

// judgeHistory checks that the history has each request to which a proxy responded once. It may lack the last
// requests before a proxy was killed.
func (s *soak) judgeHistory() {
	for i, p := range s.proxies {
		r := &s.load.recorded[i]
		minimum, minTotals := r.responded, r.responded
		for _, e := range s.events {
			if e.proxy == i {
				for second, n := range r.bySecond {
					at := time.Duration(second) * time.Second
					if at <= e.ended && at+time.Second >= e.killed-lostByKill {
						minimum -= n
					}
					if at <= e.ended && at+time.Second >= e.killed-lostTotals {
						minTotals -= n
					}
				}
			}
		}
		name := "split_part(node, '#', 1) = '" + p.name + "'"
		for _, sum := range []struct {
			what, sql string
			minimum   int
		}{
			{what: "the audit log",
				sql: "SELECT coalesce((SELECT sum(count * weight) FROM rate_limit_audit WHERE " +
					name + "), 0)::bigint + coalesce((SELECT sum(dropped) FROM rate_limit_writers " +
					"WHERE " + name + "), 0)::bigint", minimum: minimum},
			{what: "the metrics",
				sql: "SELECT coalesce(sum(requests), 0)::bigint FROM rate_limit_metrics WHERE " +
					"granularity = 'minute' AND region = '" + p.name + "'", minimum: minTotals},
		} {
			var got int64
			for until := time.Now().Add(15 * time.Second); ; time.Sleep(500 * time.Millisecond) {
				got = cluster.Query[int64](s.t, s.servers.dsn, sum.sql)
				if got >= int64(r.responded) || time.Now().After(until) {
					break
				}
			}
			fmt.Printf("soak: %s has %d requests of %s, which has responded to %d of %d\n", sum.what, got,
				p.name, r.responded, r.sent)
			if got < int64(sum.minimum) || got > int64(r.sent) {
				s.t.Errorf("%s has %d requests of %s, want %d to %d", sum.what, got, p.name, sum.minimum,
					r.sent)
			}
		}
	}
}
