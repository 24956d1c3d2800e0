package host

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// memoryText is logged when counters in memory are opened.
	memoryText = "dsn is memory: limits are counted in this process only"

	// passwordWarning is logged if a DSN in a configuration holds a password, because proxies show their
	// configurations in APIs and debug logs.
	passwordWarning = "the dsn in the configuration holds a password, which the proxy's API and its debug " +
		"log may show: put it into a file or into the environment"
)

// Database is a database that handlers share, with its store, its registry row, and the log of its failures.
type Database struct {
	Settings settings.Connection
	Store    ratelimit.Store // nil if the database has the history only
	Postgres *store.Store    // the same as Store; nil if Store counts in memory
	DB       pgdb.DB         // the connections of the store; nil if Store counts in memory
	Node     *registry.Node  // counts the requests; nil without a store on Postgres
	Salt     *respond.Salt
	Clock    *respond.Clock
	Outage   *Outage

	log       func(Line) // does nothing once the database is closed
	logAlways func(Line)
	warned    int32 // 1 once passwordWarning has been logged; atomic
	closed    int32 // 1 once the database is closed; atomic

	anonymous sync.Map // see policy.Settings.Anonymous

	mu     sync.Mutex                           // guards the fields below
	limits map[ratelimit.Limit]*ratelimit.Limit // the limits of all handlers; see Limit
	kept   any                                  // the result of Keep
}

// openDatabase opens a database, or shares an open one.
func (o *Databases) openDatabase(source *DataSource) (*Database, error) {
	p := o.process
	shared, err := o.share(fmt.Sprintf("database %#v", source.Connection), func() (Resource, error) {
		d, err := p.openDatabase(source)
		return d, err
	})
	if err != nil {
		return nil, err
	}
	d := shared.(*Database)
	if source.Configured.HasPassword && atomic.CompareAndSwapInt32(&d.warned, 0, 1) {
		p.Log(Line{Level: Warn, Text: passwordWarning})
	}
	return d, nil
}

func (p *Process) openDatabase(source *DataSource) (*Database, error) {
	d := &Database{
		Settings: source.Connection, Outage: &Outage{}, Clock: &respond.Clock{},
		limits: map[ratelimit.Limit]*ratelimit.Limit{}, logAlways: p.Log,
	}
	d.log = func(line Line) {
		if atomic.LoadInt32(&d.closed) == 0 {
			p.Log(line)
		}
	}
	if source.DSN == settings.MemoryDSN {
		p.Log(Line{Level: Warn, Text: memoryText})
		inMemory, err := memory.New(memory.Options{})
		d.Store = inMemory
		d.Salt = respond.NewSalt(nil)
		return d, err
	}
	db, err := p.Connect(source)
	if err != nil {
		return nil, err
	}
	d.DB = db
	d.Salt = respond.NewSalt(db)
	if source.HistoryOnly {
		return d, nil
	}
	return d, d.openStore(p)
}

// openStore opens the store of the database, with the registry row of the process.
func (d *Database) openStore(p *Process) error {
	s := &d.Settings
	o := engine.Options{DisableMigration: !s.AutoMigrate, CleanupProbability: s.CleanupProbability,
		DisableRememberedRefusals: !s.RememberedRefusals, LeaseHorizon: p.LeaseHorizon,
		LeaseHits: p.LeaseHits, OnError: d.failed,
		Log: func(text string) { d.log(Line{Level: Warn, Text: text}) }}
	if s.CleanupProbability == 0 {
		o.CleanupProbability = -1
	}
	d.Node = registry.Join(p.nodeName(s), s.DSN, p.Version, s.Region)
	inPostgres, err := store.Open(d.DB, o, d.Node)
	if err != nil {
		return err
	}
	d.Store = inPostgres
	d.Postgres = inPostgres
	d.Clock.Latest = &inPostgres.Rows().Ahead
	return nil
}

// nodeName returns the name of this proxy: NodeName of the settings, or the host name, a slash and Kind.
func (p *Process) nodeName(s *settings.Connection) string {
	if s.NodeName != "" {
		return s.NodeName
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "/" + p.Kind
}

// failed logs a failure of background work, such as a cleanup.
func (d *Database) failed(err error) {
	d.Outage.Failed(d.log, Line{Level: Error, Text: "the database failed", Err: err}, false, time.Now())
}

// Prepare implements Resource. It connects and creates the tables in the background.
func (d *Database) Prepare() {
	if d.Postgres != nil {
		d.Postgres.Prepare()
	}
}

// Close implements Resource.
func (d *Database) Close() {
	atomic.StoreInt32(&d.closed, 1)
	if d.Store == nil {
		d.DB.Close()
		return
	}
	d.End(func() { d.Store.Close() })
}

// End calls end, which closes or flushes the Store, and logs how many settlements are lost by that.
func (d *Database) End(end func()) {
	s := d.Postgres
	if s == nil {
		end()
		return
	}
	lost := -s.Stats()[engine.Unsettled]
	end()
	if lost += s.Stats()[engine.Unsettled]; lost > 0 {
		d.logAlways(Line{Level: Error, Text: fmt.Sprintf("%d settlements are lost, because the database has "+
			"not answered before the end: what these requests cost is not charged", lost)})
	}
}

// Limit returns the canonical copy of a limit on this database, so that equal limits have equal pointers, and
// a lease outlives a reload.
func (d *Database) Limit(l *ratelimit.Limit) *ratelimit.Limit {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := d.limits[*l]
	if first == nil {
		first = l
		d.limits[*l] = first
	}
	return first
}

// Keep returns the adapter's data for the database, and keeps the data as long as the database is open. The
// first call creates the data with create.
func (d *Database) Keep(create func() any) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept == nil {
		d.kept = create()
	}
	return d.kept
}

// anonymousTier is a tier in Database.anonymous, which the sites that need it share.
type anonymousTier struct {
	d    *Database
	tier string
}

// Prepare implements Resource.
func (*anonymousTier) Prepare() {}

// Close implements Resource.
func (a *anonymousTier) Close() { a.d.anonymous.Delete(a.tier) }

// openPolicy opens the policy of a handler, or shares an open one.
func (o *Databases) openPolicy(sources *DataSources) (*policy.Policy, error) {
	d, err := o.openDatabase(sources.Policy)
	if err != nil {
		return nil, err
	}
	p := o.process
	counters := o.Limits
	name := fmt.Sprintf("policy %#v %#v", d.Settings, counters.Settings)
	shared, failure := o.share(name, func() (Resource, error) {
		return policy.New(d.DB, policy.Settings{
			Health:           d.Postgres.Health(), // a policy has no database in memory
			MemoSize:         p.MemoSize,
			DisableMigration: !d.Settings.AutoMigrate,
			OnApplied:        d.Postgres.SetApplied,
			OnError:          func(err error) { d.policyFailed(counters, err) },
			Anonymous:        &d.anonymous,
		}), nil
	})
	if tier := sources.Anonymous; failure == nil && tier != "" {
		_, failure = o.share(fmt.Sprintf("tier %q %#v", tier, d.Settings), func() (Resource, error) {
			d.anonymous.Store(tier, true)
			return &anonymousTier{d, tier}, nil
		})
	}
	if failure != nil {
		return nil, failure
	}
	return shared.(*policy.Policy), nil
}

// policyFailed logs a failure of the policy: the database does not answer, or rules are invalid. The policy
// reports a repeated failure once.
func (d *Database) policyFailed(counters *Database, err error) {
	line := Line{Level: Error, Text: "the policy", Err: err}
	if counters == d { // else no decision would show that the database answers again
		d.Outage.Failed(nil, line, false, time.Now())
	}
	d.log(line)
}

// openHistory opens the history of a handler, or shares an open one. A history writes its pending records
// when it is closed, so its database is closed after the history.
func (o *Databases) openHistory(sources *DataSources) (*history.Writer, error) {
	d, err := o.openDatabase(sources.History)
	if err != nil {
		return nil, err
	}
	p := o.process
	shared, failure := o.share(fmt.Sprintf("history %#v %#v", sources.Recorded, d.Settings),
		func() (Resource, error) {
			return history.New(d.DB, history.Settings{
				Node: p.nodeName(&d.Settings), Region: d.Settings.Region,
				Address: sources.Recorded.Address, Retention: sources.Recorded.Retention,
				DisableMigration: !d.Settings.AutoMigrate,
				OnError: func(err error) {
					p.Log(Line{Level: Error, Text: "the history", Err: err})
				},
			}), nil
		})
	if failure != nil {
		return nil, failure
	}
	return shared.(*history.Writer), nil
}
