package host

import (
	"fmt"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Process says how a process connects and logs, and holds what its handlers share: databases, and the
// policies and histories in them. The exported fields do not change after the first Open.
type Process struct {
	Kind    string // caddy or traefik: the end of its name if the settings have no NodeName
	Version string // of the proxy, and of pg-ratelimit in it

	// Connect returns a driver that has not connected yet. MaxConns is 0 if the DSN has the number.
	Connect func(at *DataSource) (pgdb.DB, error)
	// Log logs what belongs to no single handler.
	Log func(Line)
	// Delay is the life of a Handle after its Release: the handlers of a reload share its resources, and
	// the last requests of its handler may still be on their way to the handler.
	Delay time.Duration

	LeaseHorizon time.Duration // for how long leases should last; 0 is a second
	Remember     int           // see policy.Settings

	mu     sync.Mutex // guards all that follows, and the fields of each sharing
	shared map[string]*sharing
}

// Resource is shared by handlers. Both methods may be called several times.
type Resource interface {
	Prepare() // connects, in the background
	Close()
}

// sharing is a Resource with the number of Handles that have it.
type sharing struct {
	of    Resource
	users int
}

// Handle is one handler's share of what a Process has open, until its Release. One goroutine at a time calls
// its methods.
type Handle struct {
	Limits  *Database
	Policy  *policy.Policy  // nil without
	History *history.Writer // nil without
	// Resources are all of these, and their databases. What works in a database comes after the database, and
	// is closed before it.
	Resources []Resource

	// After is the time between Release and the end.
	After time.Duration

	process *Process
	names   []string // of Resources
}

// Open opens what a handler needs, or shares what is open. It does not touch the network, see Handle.Prepare.
// timeout is that of the handler's requests.
func (p *Process) Open(at *DataSources, timeout time.Duration) (*Handle, error) {
	h := &Handle{process: p, After: p.Delay + timeout}
	err := h.open(at)
	if err != nil {
		h.End()
		return nil, err
	}
	return h, nil
}

func (h *Handle) open(at *DataSources) error {
	var err error
	if h.Limits, err = h.openDatabase(&at.Limits); err != nil {
		return err
	}
	if at.HasPolicy {
		if h.Policy, err = h.openPolicy(at); err != nil {
			return err
		}
	}
	if at.Records {
		h.History, err = h.openHistory(at)
	}
	return err
}

// share returns the Resource with a name, and opens it if there is none. The name holds all its settings.
func (h *Handle) share(name string, open func() (Resource, error)) (Resource, error) {
	p := h.process
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
	h.names = append(h.names, name)
	h.Resources = append(h.Resources, s.of)
	return s.of, nil
}

// leave takes a user off the Resource with a name, and reports whether it was the last one.
func (p *Process) leave(name string) bool {
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

// Shared returns all that handlers share now.
func (p *Process) Shared() []Resource {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Resource
	for _, s := range p.shared {
		all = append(all, s.of)
	}
	return all
}

// Prepare connects, in the background.
func (h *Handle) Prepare() {
	for _, r := range h.Resources {
		r.Prepare()
	}
}

// Release ends the handle after the time After. It is called once.
func (h *Handle) Release() {
	time.AfterFunc(h.After, func() { h.End() })
}

// End closes at once what has no other user.
func (h *Handle) End() {
	defer h.recovered()
	for i := len(h.names) - 1; i >= 0; i-- {
		if h.process.leave(h.names[i]) {
			h.Resources[i].Close()
		}
	}
}

// recovered ends a panic, which would end the proxy. It must be deferred.
func (h *Handle) recovered() {
	if failure := recover(); failure != nil {
		h.process.Log(Line{Level: Error, Text: "closing a database", Err: fmt.Errorf("panic: %v", failure)})
	}
}
