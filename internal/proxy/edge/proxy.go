package edge

import (
	"fmt"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Proxy is what a process is to all its handlers: its name, how it connects and logs, and what its handlers share. That are
// databases, and the policies and histories in them. Those with equal settings are one. Each has a count of its users, and is
// closed by the last one. The fields do not change after the first Open.
type Proxy struct {
	Kind    string // caddy or traefik: the end of its name if the settings have no NodeName
	Version string // see Program

	// Connect returns a driver that has not connected yet. MaxConns is 0 if the DSN has the number.
	Connect func(at *Place) (pgdb.DB, error)
	// Log logs what no single handler is about.
	Log func(Line)
	// Delay is how long a Use lasts after its Release: the handlers of a reload share what it has, and the last requests of
	// its handler may not have reached the handler yet.
	Delay time.Duration

	LeaseHorizon time.Duration // for how long leases should last; 0 is a second
	Remember     int           // see policy.Options

	mu     sync.Mutex // guards all that follows, and the fields of each sharing
	shared map[string]*sharing
}

// Resource is what handlers share. Both methods may be called again.
type Resource interface {
	Prepare() // connects, in the background
	Close()
}

// sharing is a Resource and how many Uses have it.
type sharing struct {
	of    Resource
	users int
}

// Use is what one handler uses of a Proxy, until its Release. One goroutine at a time calls its methods.
type Use struct {
	Limits  *Database
	History *Database // nil if nothing is recorded
	// Resources are all that it uses. What works in a database comes after the database, and is closed before it.
	Resources []Resource

	// After is the time between Release and the end. Open sets it to Proxy.Delay and the timeout of the handler.
	After time.Duration

	proxy *Proxy
	names []string // of Resources
}

// Share returns the Resource with a name, and opens it if there is none. The name says what it is and all its settings.
func (u *Use) Share(name string, open func() (Resource, error)) (Resource, error) {
	p := u.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shared[name]
	if s == nil {
		opened, err := open()
		if err != nil {
			return nil, err
		}
		if p.shared == nil {
			p.shared = map[string]*sharing{}
		}
		s = &sharing{of: opened}
		p.shared[name] = s
	}
	s.users++
	u.names = append(u.names, name)
	u.Resources = append(u.Resources, s.of)
	return s.of, nil
}

// leave takes a user off the Resource with a name, and reports whether it was the last one.
func (p *Proxy) leave(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shared[name]
	s.users--
	if s.users > 0 {
		return false
	}
	delete(p.shared, name)
	return true
}

// Shared are all that handlers use now.
func (p *Proxy) Shared() []Resource {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Resource
	for _, s := range p.shared {
		all = append(all, s.of)
	}
	return all
}

// Open opens what a site needs, and prepares the site for its first request. It does not touch the network, see Use.Prepare.
func (p *Proxy) Open(site *Site, at *Places) (*Use, error) {
	u := &Use{proxy: p, After: p.Delay + site.Decider.Timeout}
	live, writer, err := u.acquire(site.Policy, at)
	if err != nil {
		u.End()
		return nil, err
	}
	d := u.Limits
	site.Fields.Salt = d.salt
	site.Outage = d.outage
	site.Totals = d.Totals
	site.Decider.UseStore(d.Store)
	if site.Policy != nil {
		site.Policy.Live = live
	}
	if writer != nil {
		site.History = writer
		site.Hide()
	}
	for _, z := range site.Zones {
		d.share(z)
	}
	site.Reopen = func(retry func(store ratelimit.Store, live *ProxyPolicy)) {
		again := &Use{proxy: p, After: u.After}
		defer again.Release()
		replaced, _, err := again.acquire(site.Policy, at)
		if err == nil {
			retry(again.Limits.Store, replaced)
		}
	}
	site.logWarnings()
	site.Prepare()
	return u, nil
}

// acquire acquires the databases of a site, its policy, and its history, which is nil if nothing is recorded.
func (u *Use) acquire(policy *SitePolicy, at *Places) (*ProxyPolicy, *history.Writer, error) {
	var live *ProxyPolicy
	var writer *history.Writer
	var err error
	if u.Limits, err = u.database(&at.Limits); err != nil {
		return nil, nil, err
	}
	if policy != nil {
		if live, err = u.policy(at); err != nil {
			return nil, nil, err
		}
	}
	if at.Records {
		writer, err = u.history(at)
	}
	return live, writer, err
}

// Prepare connects, in the background.
func (u *Use) Prepare() {
	for _, r := range u.Resources {
		r.Prepare()
	}
}

// Release ends the use. It is called once.
func (u *Use) Release() {
	time.AfterFunc(u.After, func() { u.End() })
}

// End closes what has no other user, at once.
func (u *Use) End() {
	defer u.recovered()
	for i := len(u.names) - 1; i >= 0; i-- {
		if u.proxy.leave(u.names[i]) {
			u.Resources[i].Close()
		}
	}
}

// recovered ends a panic, which would end the proxy. It must be deferred.
func (u *Use) recovered() {
	if failure := recover(); failure != nil {
		u.proxy.Log(Line{Level: Error, Text: "closing a database", Err: fmt.Errorf("panic: %v", failure)})
	}
}
