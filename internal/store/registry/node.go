package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// maxReport bounds the bytes of a report, and maxProblems those of its problems. The policy also reports
	// all problems as an error.
	maxReport   = 1200
	maxProblems = 400
	maxBusiest  = 20        // bounds the limits in a report
	maxLimits   = 10000     // bounds the limits that are counted
	seriesPause = time.Hour // the pause that ends a series of requests without a decision
)

// Node is a process in the registry. It has the report of the process: its state, and counts of requests
// since its start. Stores with the same name on one database share a Node.
type Node struct {
	Name  string // the same after each start; several processes may have it
	Epoch int64  // differs after each start; Name and Epoch are the key of the row

	Running int64 // the requests that run, and are then settled on limits of tokens; atomic

	mu        sync.Mutex // guards the fields below, except limitCounts.leased
	report    report
	limits    map[string]*limitCounts // by prefix
	writtenAt time.Time               // the time of the last write of the row; polling is held to set it
	written   string                  // report.Applied as of that write

	stores  int32        // the number of stores that share the Node; atomic
	refused atomic.Value // what the server refuses in the DSN, a string; "" for nothing

	polling   sync.Mutex // guards the fields below, also during a round trip
	ending    bool       // see End
	retryAt   time.Time  // the time of the next poll after a failed write
	proxies   int64      // the number of running proxies
	countedAt time.Time  // the time of the last poll that failed, or found proxies or more
	cannot    string     // what the role lacks, or ""
	outdated  string     // see schema.Outdated
	failure   string     // the last failure
}

// report is the column report of rate_limit_nodes. Its times are microseconds by the clock of this machine,
// and Clock is the time of the write, so that the server can express them by its own clock. 0 means none.
type report struct {
	Version    string   `json:"version,omitempty"`
	Region     string   `json:"region,omitempty"`
	Clock      int64    `json:"clock"`
	Applied    string   `json:"applied,omitempty"` // see SetApplied; "" without a policy
	Log        string   `json:"log,omitempty"`
	Problems   []string `json:"problems,omitempty"`
	Cannot     string   `json:"cannot,omitempty"`
	LocalFrom  int64    `json:"local_from,omitempty"`
	LocalUntil int64    `json:"local_until,omitempty"`

	Requests [outcome.Count]int64 `json:"requests"` // by outcome.Kind
	Locally  int64                `json:"locally"`  // decided without the database
	Running  int64                `json:"running"`  // those that run, and cost tokens
	Busiest  map[string][]int64   `json:"busiest"`  // {prefix: [admitted, limited]}

	// The first and the last request of the last series of requests without a decision, and how many of
	// them passed.
	UndecidedFrom    int64 `json:"open_from,omitempty"`
	UndecidedUntil   int64 `json:"open_until,omitempty"`
	UndecidedPassed  int64 `json:"open_passed"`
	UndecidedRefused int64 `json:"open_refused"`

	Lost   int64 `json:"lost,omitempty"`    // settlements that may not have arrived
	LostAt int64 `json:"lost_at,omitempty"` // the time of the last of them
}

// limitCounts counts the requests of a limit. leased is atomic. Its requests are not in admitted.
type limitCounts struct {
	prefix                    string
	leased, admitted, limited int64
	total                     int64 // the sum that encode sorts by
}

// nodes holds the Nodes of this process, by name and DSN.
var (
	nodes        sync.Map
	processEpoch = time.Now().UnixMicro()
)

// Join returns the Node of this process with a name, for a store on a database.
func Join(name, dsn, version, region string) *Node {
	joined, _ := nodes.LoadOrStore(name+" "+dsn, &Node{Name: name, Epoch: processEpoch})
	n := joined.(*Node)
	atomic.AddInt32(&n.stores, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.report.Version, n.report.Region = version, region
	return n
}

// SetApplied reports which changes of the policy the process applies: those that are visible in the database
// snapshot applied. log is the oid of the log of changes, which differs after a restore. problems are those
// of the policy's rules.
func (n *Node) SetApplied(applied, log string, problems []string) {
	text := strings.Join(problems, "\x00") // a byte that no text of Postgres has
	if len(text) > maxProblems {
		text = strings.ToValidUTF8(text[:maxProblems], "") + fmt.Sprintf(" … (%d in all)", len(problems))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.report.Applied, n.report.Log = applied, log
	n.report.Problems = nil // the interpreter cannot assign nil beside other values
	if text != "" {
		n.report.Problems = strings.Split(text, "\x00")
	}
}

// Due reports whether Poll should write the row at a time.
func (n *Node) Due(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	since := now.Sub(n.writtenAt)
	return since >= heartbeatInterval || since >= changeInterval && n.report.Applied != n.written
}

// Counted is a request for Count.
type Counted struct {
	Kind      outcome.Kind
	Passed    bool // the request passes, even without a decision
	Hits      []ratelimit.Hit
	Decisions []ratelimit.Decision
}

// Count counts requests by their outcomes. A decided request also counts for each limit that it is charged
// to, or that refuses it.
func Count(n *Node, all ...Counted) {
	n.mu.Lock()
	for k := range all {
		c := &all[k]
		n.report.Requests[c.Kind]++
		if c.Kind > outcome.Limited && c.Kind.Undecided() {
			countUndecided(&n.report, c.Passed)
			continue
		}
		for i := range c.Decisions {
			if c.Hits[i].Independent || !c.Passed && c.Decisions[i].Allowed {
				continue
			}
			l := n.limits[c.Hits[i].Limit.Prefix]
			if l == nil {
				l = n.limit(c.Hits[i].Limit.Prefix)
			}
			if c.Passed {
				l.admitted++
			} else {
				l.limited++
			}
		}
	}
	n.mu.Unlock()
}

// countUndecided counts a request without a decision. The caller holds the mutex of r.
func countUndecided(r *report, passed bool) {
	now := time.Now().UnixMicro()
	if now-r.UndecidedUntil > seriesPause.Microseconds() {
		r.UndecidedFrom, r.UndecidedPassed, r.UndecidedRefused = now, 0, 0
	}
	r.UndecidedUntil = now
	if passed {
		r.UndecidedPassed++
	} else {
		r.UndecidedRefused++
	}
}

// limit returns the counts of a limit. The report omits limits beyond maxLimits. The caller holds the mutex.
func (n *Node) limit(prefix string) *limitCounts {
	l := n.limits[prefix]
	if n.limits == nil {
		n.limits = map[string]*limitCounts{}
	}
	if l == nil {
		l = &limitCounts{prefix: prefix}
		if len(n.limits) < maxLimits {
			n.limits[prefix] = l
		}
	}
	return l
}

// Leased returns a counter of requests that leases of a limit admit. For these requests, the caller adds 1 to
// the counter, atomically, and does not call Count.
func (n *Node) Leased(prefix string) *int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &n.limit(prefix).leased
}

// CountLocal counts a request that the process decides without the database, in addition to Count. from is
// the time of the first such request of the outage.
func (n *Node) CountLocal(from, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.report.Locally++
	n.report.LocalFrom, n.report.LocalUntil = from.UnixMicro(), now.UnixMicro()
}

// Lose counts a settlement that may not have arrived.
func (n *Node) Lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.report.Lost++
	n.report.LostAt = time.Now().UnixMicro()
}

// SetRefused makes the reports to the other databases of the process say what this server refuses in its DSN.
// err is why the server is unavailable, or nil.
func (n *Node) SetRefused(err error) {
	text := ""
	if errors.Is(err, pgdb.ErrConfiguration) {
		_, after, _ := strings.Cut(err.Error(), pgdb.ErrConfiguration.Error())
		text = "of another database, " + pgdb.ErrConfiguration.Error() + after
		if len(text) > maxProblems {
			text = strings.ToValidUTF8(text[:maxProblems], "")
		}
	}
	n.refused.Store(text)
}

// refusedOfOther returns what a server refuses in the DSN of another database of the process.
func (n *Node) refusedOfOther() string {
	first := ""
	nodes.Range(func(_, value any) bool {
		other := value.(*Node)
		text, _ := other.refused.Load().(string)
		if other != n && text != "" && atomic.LoadInt32(&other.stores) > 0 && (first == "" || text < first) {
			first = text
		}
		return true
	})
	return first
}

// encode returns the report as JSON, with as many of the busiest limits as fit, and its field Applied. The
// caller holds polling.
func (n *Node) encode(now time.Time) (text, applied string) {
	refused := n.refusedOfOther()
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.report
	r.Clock = now.UnixMicro()
	r.Running = atomic.LoadInt64(&n.Running)
	r.Cannot = n.cannot
	if refused != "" {
		r.Problems = append([]string{refused}, r.Problems...)
	}
	if n.outdated != "" && r.Applied == "" { // else the policy says so
		r.Problems = append([]string{n.outdated}, r.Problems...)
	}
	var busiest []*limitCounts
	for _, l := range n.limits {
		leased := atomic.LoadInt64(&l.leased)
		r.Requests[outcome.Admitted] += leased
		l.total = leased + l.admitted + l.limited
		busiest = append(busiest, l)
	}
	sort.Slice(busiest, func(i, j int) bool { return busiest[i].total > busiest[j].total })
	for most := maxBusiest; ; most-- {
		r.Busiest = map[string][]int64{}
		for i := 0; i < most && i < len(busiest); i++ {
			l := busiest[i]
			r.Busiest[l.prefix] = []int64{l.total - l.limited, l.limited}
		}
		data, _ := json.Marshal(r) // cannot fail for a report
		if len(data) <= maxReport || most == 0 {
			return string(data), r.Applied
		}
	}
}
