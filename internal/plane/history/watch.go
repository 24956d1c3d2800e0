package history

import (
	"net/netip"
	"sort"
	"strings"
	"sync/atomic"
)

// Watched is what a Writer has counted. It is for a page that shows what the proxies do now, which reads it as JSON.
type Watched struct {
	// Since is when the counts of Top begin, in seconds since 1970.
	Since int64 `json:"since"`
	// Exact is whether Top has counted every sender. There may have been too many.
	Exact bool `json:"exact"`
	// Top are those with the most requests and those with the most refusals, in no order, of each of watchedKinds.
	Top map[string][]Counted `json:"top"`
}

// watchedKinds are what requests are counted by: their senders, the rules and limits, and all requests together, which have
// the name "".
var watchedKinds = []string{"keys", "users", "addresses", "rules", "all"}

// ReasonPrefix begins the name of a rule in Top for requests that neither a rule nor a limit refused, such as
// reason/unknown_key.
const ReasonPrefix = "reason/"

// Counted is what one sender, or the requests of one rule, did. A page gets many of them each second.
type Counted struct {
	Prefix   string `json:"p,omitempty"` // that of a key, else ""
	Name     string `json:"n"`
	Requests int64  `json:"r"`
	Refused  int64  `json:"x,omitempty"`
	Failed   int64  `json:"f,omitempty"`
}

const (
	// seenNames are how many different names of a kind one interval has.
	seenNames = 1000
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

// seen counts the requests of an interval, by watchedKinds. Add and AddCounted fill it, so it does as
// little as possible.
type seen struct {
	keys      map[string]*tally // by prefix and key, with a NUL between them
	users     map[string]*tally
	addresses map[netip.Addr]*tally
	rules     map[string]*tally
	all       tally
	left      bool // there were too many names
}

func newSeen() *seen {
	return &seen{keys: make(map[string]*tally), users: make(map[string]*tally), addresses: make(map[netip.Addr]*tally), rules: make(map[string]*tally)}
}

// see counts a record. The caller holds the Writer's mutex.
func see(s *seen, r *Record, mode AddressMode) {
	if r.Outcome == Shadow {
		return
	}
	refused := int64(0)
	failed := int64(0)
	if r.Outcome >= Failed {
		failed = 1
	} else if r.Outcome != Allowed {
		refused = 1
	}
	s.all.requests++
	s.all.refused += refused
	s.all.failed += failed
	rule := r.Prefix
	if rule == "" && refused == 1 && r.Reason != "" {
		rule = ReasonPrefix + r.Reason
	}
	if rule != "" {
		t := s.rules[rule]
		if t == nil && len(s.rules) < seenNames {
			t = &tally{}
			s.rules[strings.Clone(rule)] = t
		}
		count(s, t, refused, failed)
	}
	if r.Key != "" {
		k := r.Prefix + "\x00" + r.Key
		if mode != AddressFull {
			k = r.Prefix + "\x00" + maskKey(mode, r.Key, r.Address)
		}
		t := s.keys[k]
		if t == nil && len(s.keys) < seenNames {
			t = &tally{}
			s.keys[k] = t
		}
		count(s, t, refused, failed)
	}
	if r.User != "" {
		t := s.users[r.User]
		if t == nil && len(s.users) < seenNames {
			t = &tally{}
			s.users[strings.Clone(r.User)] = t
		}
		count(s, t, refused, failed)
	}
	if r.Address.IsValid() {
		t := s.addresses[r.Address]
		if t == nil && len(s.addresses) < seenNames {
			t = &tally{}
			s.addresses[r.Address] = t
		}
		count(s, t, refused, failed)
	}
}

// count counts a request of a name; t is nil if there are too many names.
func count(s *seen, t *tally, refused, failed int64) {
	if t == nil {
		s.left = true
		return
	}
	t.requests++
	t.refused += refused
	t.failed += failed
}

// slot adds up intervals.
type slot struct {
	number int64               // of the slot since 1970; 0 is none
	kinds  []map[string]*tally // by watchedKinds
	left   bool
}

// watch is what a watched Writer has counted. Only Watch uses it, which one goroutine at a time calls.
type watch struct {
	since     int64 // when it began
	now, last slot
}

// Watch returns what was counted, and goes on counting senders until the next Watch, or stops if on is
// false. It adds all requests since the start to those of their prefixes, by OutcomeKind. One goroutine at a time may call it.
func Watch(w *Writer, on bool, requests map[string][]int64) Watched {
	now := w.settings.Now().Unix()
	w.mu.Lock()
	s := w.seen
	w.seen = nil
	atomic.StoreInt32(&w.watched, 0)
	if on && !w.closed {
		w.seen = newSeen()
		atomic.StoreInt32(&w.watched, 1)
	}
	w.totals.addByPrefix(requests)
	w.mu.Unlock()
	v := &w.view
	if !on || s == nil {
		w.view = watch{since: now}
		return Watched{Since: now, Exact: true}
	}
	if number := now / slotSeconds; v.now.number != number {
		v.last = slot{}
		if v.now.number == number-1 {
			v.last = v.now
		}
		v.now = slot{number: number}
		for range watchedKinds {
			v.now.kinds = append(v.now.kinds, make(map[string]*tally))
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
	top := make(map[string][]Counted)
	for at, kind := range watchedKinds {
		top[kind] = topOf(v, at)
	}
	return Watched{Since: since, Exact: !v.now.left && !v.last.left, Top: top}
}

// add adds an interval to a slot.
func (s *slot) add(i *seen, mode AddressMode) {
	s.left = s.left || i.left
	addresses := make(map[string]*tally, len(i.addresses))
	for address, t := range i.addresses {
		if text := maskAddress(mode, address); text != "" {
			addTally(addresses, text, t)
		}
	}
	all := map[string]*tally{"": &i.all}
	for at, names := range []map[string]*tally{i.keys, i.users, addresses, i.rules, all} {
		for name, t := range names {
			addTally(s.kinds[at], name, t)
		}
		if len(s.kinds[at]) > slotNames {
			s.left = true
			prune(s.kinds[at])
		}
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
	sums := make(map[string]*tally)
	for _, s := range []*slot{&v.last, &v.now} {
		if s.number != 0 {
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
		if kind == 0 {
			at := strings.IndexByte(name, 0)
			c.Prefix = name[:at]
			c.Name = name[at+1:]
		}
		top = append(top, c)
	}
	return top
}
