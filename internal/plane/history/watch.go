package history

import (
	"net/netip"
	"sort"
	"strings"
	"sync/atomic"
)

// Watched is what a Writer has counted. It is for a page that shows what the proxies do now.
type Watched struct {
	// Since is when the counts of Top begin, in seconds since 1970.
	Since int64
	// Exact is whether Top has counted every sender. There may have been too many.
	Exact bool
	Top   Top
	// ByPrefix are all requests of this process by prefix, and of each by OutcomeKind.
	ByPrefix map[string][]int64
}

// Top are the senders with the most requests, and those with the most refusals, in no order.
type Top struct {
	Keys, Users, Addresses, Rules []Counted
	All                           Counted // all requests
}

// Counted is what one sender, or the requests of one rule, did.
type Counted struct {
	Prefix, Name              string // Prefix is that of a key, else ""
	Requests, Refused, Failed int64
}

const (
	// seenSenders are how many different senders one interval has.
	seenSenders = 1000
	// slotSeconds is for how long a slot counts. Top has the slot under way and the one before.
	slotSeconds = 300
	// slotNames are how many different names of a kind a slot has at most.
	slotNames = 2000
	// topNames are how many names of each order Top has.
	topNames = 20
)

// IsWatched reports whether a page is open. A Record should then have its Key and its Address.
func IsWatched(w *Writer) bool { return atomic.LoadInt32(&w.watched) != 0 }

// tally is what was counted of a name.
type tally struct{ requests, refused, failed int64 }

// watchedSender is what is counted apart.
type watchedSender struct {
	prefix, key, user string
	address           netip.Addr
}

// seen counts the requests of an interval. Add and AddCounted fill it, so it does as little as possible.
type seen struct {
	senders map[watchedSender]*tally
	others  map[string]*tally // by prefix: the requests of further senders
}

func newSeen() *seen {
	return &seen{senders: make(map[watchedSender]*tally), others: make(map[string]*tally)}
}

// see counts a record. The caller holds the Writer's mutex.
func see(s *seen, r *Record) {
	if r.Outcome == Shadow {
		return
	}
	of := watchedSender{r.Prefix, r.Key, r.User, r.Address}
	t := s.senders[of]
	if t == nil {
		t = addSender(s, of)
	}
	t.requests++
	if r.Outcome >= Failed {
		t.failed++
	} else if r.Outcome != Allowed {
		t.refused++
	}
}

func addSender(s *seen, of watchedSender) *tally {
	t := &tally{}
	of.prefix = strings.Clone(of.prefix) // each may be a part of a long request
	if len(s.senders) < seenSenders {
		of.key = strings.Clone(of.key)
		of.user = strings.Clone(of.user)
		s.senders[of] = t
	} else if other := s.others[of.prefix]; other != nil {
		t = other
	} else {
		s.others[of.prefix] = t
	}
	return t
}

// The kinds of a slot. A key has its prefix and a NUL before it.
const (
	keys = iota
	users
	addresses
	rules
	kinds
)

// slot adds up intervals.
type slot struct {
	number int64               // of the slot since 1970; 0 is none
	kinds  []map[string]*tally // keys, users, addresses and rules
	all    tally
	left   bool
}

// watch is what a watched Writer has counted. Only Watch uses it, which one goroutine at a time calls.
type watch struct {
	since     int64 // when it began
	now, last slot
}

// Watch returns what was counted, and goes on counting senders until the next Watch, or stops if on is
// false. One goroutine at a time may call it.
func Watch(w *Writer, on bool) Watched {
	now := w.settings.Now().Unix()
	w.mu.Lock()
	s := w.seen
	w.seen = nil
	atomic.StoreInt32(&w.watched, 0)
	if on && !w.closed {
		w.seen = newSeen()
		atomic.StoreInt32(&w.watched, 1)
	}
	byPrefix := w.totals.byPrefix()
	w.mu.Unlock()
	v := &w.view
	if !on || s == nil {
		w.view = watch{since: now}
		return Watched{Since: now, Exact: true, ByPrefix: byPrefix}
	}
	if number := now / slotSeconds; v.now.number != number {
		v.last = slot{}
		if v.now.number == number-1 {
			v.last = v.now
		}
		v.now = slot{number: number, kinds: make([]map[string]*tally, kinds)}
		for kind := range v.now.kinds {
			v.now.kinds[kind] = make(map[string]*tally)
		}
	}
	v.now.add(s, w.settings.Address)
	since := v.now.number * slotSeconds
	if v.last.number != 0 {
		since = v.last.number * slotSeconds
	}
	if since < v.since {
		since = v.since
	}
	return Watched{Since: since, Exact: !v.now.left && !v.last.left, ByPrefix: byPrefix, Top: Top{
		Keys: topOf(v, keys), Users: topOf(v, users), Addresses: topOf(v, addresses), Rules: topOf(v, rules),
		All: Counted{Requests: v.now.all.requests + v.last.all.requests, Refused: v.now.all.refused + v.last.all.refused, Failed: v.now.all.failed + v.last.all.failed},
	}}
}

// add adds an interval to a slot.
func (s *slot) add(i *seen, mode AddressMode) {
	for of, t := range i.senders {
		if of.key != "" {
			addTally(s.kinds[keys], of.prefix+"\x00"+maskKey(mode, of.key, of.address), t)
		}
		if of.user != "" {
			addTally(s.kinds[users], of.user, t)
		}
		if address := maskAddress(mode, of.address); address != "" {
			addTally(s.kinds[addresses], address, t)
		}
		s.addRule(of.prefix, t)
	}
	for prefix, t := range i.others {
		s.left = true
		s.addRule(prefix, t)
	}
	for _, names := range s.kinds {
		if len(names) > slotNames {
			s.left = true
			prune(names)
		}
	}
}

// addRule adds the requests of a prefix, and to all requests.
func (s *slot) addRule(prefix string, t *tally) {
	s.all.requests += t.requests
	s.all.refused += t.refused
	s.all.failed += t.failed
	if prefix != "" {
		addTally(s.kinds[rules], prefix, t)
	}
}

func addTally(to map[string]*tally, name string, t *tally) {
	sum := to[name]
	if sum == nil {
		sum = &tally{}
		to[name] = sum
	}
	sum.requests += t.requests
	sum.refused += t.refused
	sum.failed += t.failed
}

// prune removes the names with the fewest requests, half of all or more.
func prune(names map[string]*tally) {
	counts := make([]int, 0, len(names))
	for _, t := range names {
		counts = append(counts, int(t.requests))
	}
	sort.Ints(counts)
	least := int64(counts[len(counts)/2])
	for name, t := range names {
		if t.requests <= least {
			delete(names, name)
		}
	}
}

// topOf are the names of a kind with the most requests, and with the most refusals.
func topOf(v *watch, kind int) []Counted {
	sums := v.now.kinds[kind]
	if v.last.kinds != nil && len(v.last.kinds[kind]) > 0 {
		sums = make(map[string]*tally, len(v.now.kinds[kind])+len(v.last.kinds[kind]))
		for _, s := range []*slot{&v.last, &v.now} {
			for name, t := range s.kinds[kind] {
				addTally(sums, name, t)
			}
		}
	}
	// sort.Ints is fast in an interpreter, and a comparison of ours is not.
	chosen := make(map[string]bool)
	counts := make([]int, 0, len(sums))
	for _, refusals := range []bool{false, true} {
		counts = counts[:0]
		for _, t := range sums {
			if refusals {
				counts = append(counts, int(t.refused))
			} else {
				counts = append(counts, int(t.requests))
			}
		}
		sort.Ints(counts)
		least := int64(1)
		if n := len(counts); n > topNames && int64(counts[n-topNames]) > least {
			least = int64(counts[n-topNames])
		}
		ties := topNames
		for name, t := range sums {
			n := t.requests
			if refusals {
				n = t.refused
			}
			if n == least {
				ties--
			}
			if n > least || n == least && ties >= 0 {
				chosen[name] = true
			}
		}
	}
	top := make([]Counted, 0, len(chosen))
	for name := range chosen {
		t := sums[name]
		c := Counted{Name: name, Requests: t.requests, Refused: t.refused, Failed: t.failed}
		if kind == keys {
			at := strings.IndexByte(name, 0)
			c.Prefix = name[:at]
			c.Name = name[at+1:]
		}
		top = append(top, c)
	}
	return top
}
