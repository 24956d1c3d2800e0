package serve

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Site is the compiled configuration of one handler. Callers set the fields before Prepare, and nothing
// changes them afterwards. Hits, UserOf, OnSettled and OnUsage may be nil. Clients.Address is required with a
// Policy, a History or Exempt. Yaegi mishandles mutually recursive types, so Site refers to Request only
// through interfaces.
type Site struct {
	settings.Handler
	Store ratelimit.Store

	Clients *reading.Clients // if it is nil, Prepare sets one without an Address

	Salt   *respond.Salt
	Clock  *respond.Clock
	Zones  []*Zone       // including zones that are off
	Policy *Policy       // nil without a policy
	Route  *reading.Text // the name of the route in the metrics; nil without one

	// History records requests; nil records none. It omits the parts in Hidden, which may hold a secret: see
	// Prepare.
	History *history.Writer
	Hidden  reading.Parts

	// Forwards reports that the proxy reads the Verdict of a request that passes, for its upstream.
	Forwards bool
	// Watcher observes verdicts of the policy; nil observes none.
	Watcher Watcher
	// Log logs lines for operators; nil logs none. Outage is the outage log of the database. If Outage is
	// nil, requests without a decision are not logged.
	Log    func(host.Line)
	Outage *host.Outage
	// Node counts the requests. If it is nil, Prepare sets a Node that is not registered.
	Node *registry.Node

	// Hits returns further hits of a request. Go programs use it, since they have no Zones.
	Hits func(r *http.Request) []ratelimit.Hit

	// UserOf returns the user that the proxy authenticated, or "". It is called before a request is recorded.
	UserOf func(r *http.Request) (user string)
	// OnSettled is called for each settled hit, possibly from another goroutine.
	OnSettled func(prefix string, cost SettledCost)
	// OnUsage is called with the usage that each response reports, as OnSettled is.
	OnUsage func(u *Usage)

	// reopen opens closed databases again and calls retry with them, since requests can come long after a
	// reload. If it fails, it does not call retry.
	reopen func(retry func(reopened *host.Databases))

	audit          option.Audit  // the handler's setting, for requests that the policy alone decides
	warnedUnknown  int32         // 1 once the log has a warning of an unknown address; atomic
	invalidCosts   host.Sampler  // bounds log lines about invalid costs in responses
	missingUsage   host.Sampler  // bounds log lines about responses without usage
	unpricedModels host.Sampler  // bounds log lines about models without a price
	bodies         *host.Bodies  // counts the uploads of the process
	running        *host.Running // the requests of the process to settle; nil outside of a process
	busy           *int32        // counts those of the site; see host.Databases.Busy
	all            *LimitSet     // all limits that are on
	none           *LimitSet     // no limits
	needsMatch     bool          // one of Zones does not apply to all requests

	mu      sync.Mutex       // held to replace sets, and guards waiting
	sets    atomic.Value     // a map[string]*LimitSet, by Request.matched, which does not change
	waiting []host.Unsettled // Settlings of responses that have ended and wait: see settleSoon
}

// Watcher observes the requests of a Site with a policy.
type Watcher interface {
	// OnVerdict is called after the evaluation of the policy. q has the Verdict, or an Outcome if the policy
	// could not decide the request.
	OnVerdict(q *Request)
}

// Open opens the databases of the site and prepares the site for its first request. Open does not connect;
// see host.Databases.Prepare.
func (s *Site) Open(p *host.Process, sources *host.DataSources) (*host.Databases, error) {
	if s.Policy != nil && len(s.Policy.Keys) > 0 && !s.Policy.needsKey {
		sources.Anonymous = s.Policy.tier
		if sources.Anonymous == "" {
			sources.Anonymous = settings.DefaultTier
		}
	}
	opened, err := p.Open(sources, s.Timeout)
	if err != nil {
		return nil, err
	}
	d := opened.Limits
	s.Salt = d.Salt
	s.Clock = d.Clock
	s.Outage = d.Outage
	s.Node = d.Node
	s.Store = d.Store
	if s.Policy != nil {
		s.Policy.Rules = opened.Policy
	}
	s.History = opened.History
	s.bodies = &p.Bodies
	s.running = &p.Running
	s.busy = &opened.Busy
	s.audit = sources.Audit
	for _, z := range s.Zones {
		z.audit = z.auditOf(s.audit)
		z.Hit.Limit = d.Limit(z.Hit.Limit)
		for _, w := range z.Warnings() {
			s.Log(host.Line{Level: host.Warn, Setting: w.Field, Text: w.Text, Prefix: z.Limit.Prefix})
		}
	}
	timeout := s.Timeout
	s.reopen = func(retry func(reopened *host.Databases)) {
		reopened, err := p.Open(sources, timeout)
		if err == nil {
			defer reopened.Release()
			retry(reopened)
		}
	}
	s.Prepare()
	return opened, nil
}

// Prepare computes the sets of limits, and the parts of a request in Hidden, from which the policy's API key
// or a key with hash_key is taken. With on_error local, it turns on the local decisions of the store. Callers
// call Prepare once, after the fields are set and before the first request.
func (s *Site) Prepare() {
	if inPostgres, ok := s.Store.(*store.Store); ok && s.OnError == settings.Local {
		inPostgres.UseLocal()
	}
	if s.Node == nil {
		s.Node = &registry.Node{}
	}
	if s.Log == nil {
		s.Log = func(host.Line) {}
	}
	if s.bodies == nil {
		s.bodies = &host.Bodies{}
	}
	if s.Clients == nil {
		s.Clients = &reading.Clients{}
	}
	s.Clients.Unknown = func() { warnOfUnknown(s) }
	s.sets.Store(map[string]*LimitSet{})
	s.needsMatch = false
	for _, z := range s.Zones {
		s.needsMatch = s.needsMatch || z.Match != nil || requiresKey(z) || z.CostSource.CountsTokens()
		if z.HashKey != nil && *z.HashKey {
			s.Hidden.Merge(z.Key.Text.Parts)
		}
	}
	if s.Policy != nil {
		for _, key := range s.Policy.Keys {
			s.Hidden.Merge(key.Parts)
		}
	}
	s.all = newLimitSet(s, s.Zones)
	s.none = newLimitSet(s, nil)
}

// CountsTokens reports whether the site has limits of tokens, or a policy, which may have them.
func (s *Site) CountsTokens() bool {
	for _, z := range s.Zones {
		if z.CostSource.CountsTokens() {
			return true
		}
	}
	return s.Policy != nil
}

// LimitsOfAll returns the limits if they are the same for all requests. LimitsOfAll returns nil if requests
// need FindLimits.
func (s *Site) LimitsOfAll() *LimitSet {
	if s.needsMatch || len(s.Exempt) > 0 || s.Policy != nil || s.all.HasHolds || len(s.all.Hits) == 0 {
		return nil
	}
	return s.all
}
