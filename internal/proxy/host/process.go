package host

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Process holds the resources that the handlers of a process share: databases, policies and histories. The
// exported fields configure it, and do not change after the first Open.
type Process struct {
	Kind    string // caddy or traefik, see nodeName
	Version string // the versions of the proxy and of pg-ratelimit

	// Connect returns a driver that connects on first use. DataSource.MaxConns is 0 if the DSN has the bound.
	Connect func(source *DataSource) (pgdb.DB, error)
	// Log logs lines that concern no single handler.
	Log func(Line)
	// Delay is the time for which Databases stay open after Release. The handlers of a reload then share its
	// resources, and the last requests of its handler can still arrive.
	Delay time.Duration

	LeaseHorizon time.Duration // the horizon of leases; 0 means a second
	LeaseHits    int           // see engine.Options
	MemoSize     int           // see policy.Settings

	Bodies  Bodies  // counts the bodies of requests that handlers hold
	Running Running // the requests that are settled after their responses

	mu     sync.Mutex // guards the field below, and the fields of each sharing
	shared map[string]*sharing
}

// Resource is a store, a policy or a history that handlers share. Its methods may be called several times.
type Resource interface {
	Prepare() // connects, in the background
	Close()
}

// sharing is a Resource with its reference count.
type sharing struct {
	resource Resource
	users    int
}

// Databases holds one handler's references to the resources of a Process, until Release. One goroutine at a
// time calls its methods.
type Databases struct {
	Limits  *Database
	Policy  *policy.Policy  // nil without a policy
	History *history.Writer // nil without a history
	// Resources lists the resources above, and their databases. A policy or a history comes after its
	// database, and is closed before its database.
	Resources []Resource

	// After is the time between Release and End.
	After time.Duration

	// Busy is the number of requests in Process.Running that need the resources; atomic.
	Busy int32

	process *Process
	names   []string // the names of Resources in the Process
}

// Open opens the databases of a handler, or shares open ones. Open does not connect; see Databases.Prepare.
// timeout bounds the decision on a request of the handler.
func (p *Process) Open(sources *DataSources, timeout time.Duration) (*Databases, error) {
	o := &Databases{process: p, After: p.Delay + timeout}
	var err error
	o.Limits, err = o.openDatabase(&sources.Limits)
	if err == nil && sources.Policy != nil {
		o.Policy, err = o.openPolicy(sources)
	}
	if err == nil && sources.History != nil {
		o.History, err = o.openHistory(sources)
	}
	if err != nil {
		o.End()
		return nil, err
	}
	return o, nil
}

// share returns the Resource with a name, which consists of all its settings, and adds a reference to it. It
// opens the Resource if it is not open yet.
func (o *Databases) share(name string, open func() (Resource, error)) (Resource, error) {
	p := o.process
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
		s = &sharing{resource: opened}
		p.shared[name] = s
	}
	s.users++
	o.names = append(o.names, name)
	o.Resources = append(o.Resources, s.resource)
	return s.resource, nil
}

// leave removes a reference to a Resource, and reports whether no reference is left.
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

// Shared returns all open resources.
func (p *Process) Shared() []Resource {
	p.mu.Lock()
	defer p.mu.Unlock()
	var open []Resource
	for _, s := range p.shared {
		open = append(open, s.resource)
	}
	return open
}

// Prepare connects all resources in the background.
func (o *Databases) Prepare() {
	for _, r := range o.Resources {
		r.Prepare()
	}
}

// Release calls End after the time After, once no request is Busy. Callers call it once.
func (o *Databases) Release() { time.AfterFunc(o.After, func() { o.EndIdle() }) }

// EndIdle calls End, or tries again later while requests are Busy.
func (o *Databases) EndIdle() {
	if atomic.LoadInt32(&o.Busy) > 0 {
		time.AfterFunc(busyPause, func() { o.EndIdle() })
		return
	}
	o.End()
}

// busyPause is the time between two tries of EndIdle.
const busyPause = time.Second

// End immediately removes the references, and closes each resource that has no others.
func (o *Databases) End() {
	defer o.recovered()
	for i := len(o.names) - 1; i >= 0; i-- {
		if o.process.leave(o.names[i]) {
			o.Resources[i].Close()
		}
	}
}

// recovered recovers a panic, which would end the proxy, and logs it. Callers defer it.
func (o *Databases) recovered() {
	if failure := recover(); failure != nil {
		o.process.Log(Line{Level: Error, Text: "closing a database", Err: fmt.Errorf("panic: %v", failure)})
	}
}
