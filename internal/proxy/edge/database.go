package edge

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// passwordWarning is for the log if a DSN in a configuration holds a password: proxies show
// their configurations in APIs and debug logs.
const passwordWarning = "the dsn in the configuration holds a password, which the proxy's API and its debug log may show: " +
	"put it into a file or into the environment"

// Database is a store that handlers share, and what the log has said about its failures.
type Database struct {
	Settings StoreSettings
	Store    ratelimit.Store // nil if the database has the history only
	DB       pgdb.DB         // of the store; nil in memory
	Totals   *Totals         // nil without a row in the registry

	salt   *respond.Salt
	outage *Outage
	log    func(Line)
	warned int32 // 1 once the log has that a DSN in the configuration holds a password; atomic
	closed int32 // 1 once it is closed; atomic

	mu     sync.Mutex                           // guards what follows
	limits map[ratelimit.Limit]*ratelimit.Limit // of all handlers on it
	kept   any                                  // see Keep
}

// database acquires the database at a place.
func (u *Use) database(at *Place) (*Database, error) {
	p := u.proxy
	shared, err := u.Share(fmt.Sprintf("database %#v", at.StoreSettings), func() (Resource, error) {
		d, err := p.openDatabase(at)
		return d, err
	})
	if err != nil {
		return nil, err
	}
	d := shared.(*Database)
	if at.Password && atomic.CompareAndSwapInt32(&d.warned, 0, 1) {
		p.Log(Line{Level: Warn, Text: passwordWarning})
	}
	return d, nil
}

// openDatabase opens a database. It does not touch the network yet, see Prepare.
func (p *Proxy) openDatabase(at *Place) (*Database, error) {
	d := &Database{Settings: at.StoreSettings, outage: &Outage{}, log: p.Log, limits: map[ratelimit.Limit]*ratelimit.Limit{}}
	if at.DSN == MemoryDSN {
		p.Log(Line{Level: Warn, Text: memoryNotice})
		inMemory, err := memory.New(memory.Options{})
		d.Store = inMemory
		d.salt = respond.NewSalt(nil)
		return d, err
	}
	db, err := p.Connect(at)
	if err != nil {
		return nil, err
	}
	d.DB = db
	d.salt = respond.NewSalt(db)
	if at.HistoryOnly {
		return d, nil
	}
	return d, d.openStore(p)
}

// openStore opens the store, and adds it to the row of the process in the registry.
func (d *Database) openStore(p *Proxy) error {
	s := &d.Settings
	o := engine.Options{DisableMigration: !s.AutoMigrate, CleanupProbability: s.CleanupProbability,
		LeaseHorizon: p.LeaseHorizon, OnError: d.failed}
	if s.CleanupProbability == 0 {
		o.CleanupProbability = -1
	}
	if !s.InMemoryBlock {
		o.MaxBlockedKeys = -1
	}
	inPostgres, err := store.Open(d.DB, o, p.node(d))
	if err != nil {
		return err
	}
	d.Store = inPostgres
	return nil
}

// failed logs a failure that no request sees, such as that of a cleanup. A closed database logs nothing.
func (d *Database) failed(err error) {
	if atomic.LoadInt32(&d.closed) == 0 {
		d.outage.failed(d.log, Line{Level: Error, Text: "the database failed", Err: err}, false)
	}
}

// notice logs that limits are local, or exact again.
func (d *Database) notice(text string) {
	if atomic.LoadInt32(&d.closed) == 0 {
		d.log(Line{Level: Warn, Text: text})
	}
}

// AnswersAgain logs that an outage has ended if decisions show it.
func (d *Database) AnswersAgain(decisions []ratelimit.Decision) {
	d.outage.AnswersAgain(d.log, decisions)
}

// IsDown reports whether the log has an outage that has not ended. It is cheap.
func (d *Database) IsDown() bool { return d.outage.IsUnderWay() }

// Prepare implements Resource: it connects and creates the tables, in the background.
func (d *Database) Prepare() {
	if s := Postgres(d.Store); s != nil {
		s.Prepare()
	}
}

// Close implements Resource.
func (d *Database) Close() {
	atomic.StoreInt32(&d.closed, 1)
	if d.Store == nil {
		d.DB.Close()
		return
	}
	d.Store.Close()
}

// share has all handlers on the database use one limit of those that are equal: two limits are then the same if their
// addresses are, and a lease outlives a reload.
func (d *Database) share(z *Zone) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.limits[*z.Hit.Limit]
	if l == nil {
		l = z.Hit.Limit
		d.limits[*l] = l
	}
	z.Hit.Limit = l
}

// Keep returns what an adapter keeps as long as the database is open, and makes it at first.
func (d *Database) Keep(make func() any) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept == nil {
		d.kept = make()
	}
	return d.kept
}

// policy acquires the policy of a site.
func (u *Use) policy(at *Places) (*ProxyPolicy, error) {
	d, err := u.database(&at.Policy)
	if err != nil {
		return nil, err
	}
	p := u.proxy
	counters := u.Limits
	shared, failure := u.Share(fmt.Sprintf("policy %#v %#v", d.Settings, counters.Settings), func() (Resource, error) {
		o := ProxyPolicyOptions{AutoMigrate: d.Settings.AutoMigrate, Remember: p.Remember,
			OnError: func(err error) { d.policyFailed(counters, err) }}
		live, err := OpenProxyPolicy(d.Store, d.DB, o)
		return live, err
	})
	if failure != nil {
		return nil, failure
	}
	return shared.(*ProxyPolicy), nil
}

// policyFailed logs what the policy reports: that the database does not answer, or rules that cannot be used. The policy
// reports each failure once until it is over.
func (d *Database) policyFailed(counters *Database, err error) {
	if atomic.LoadInt32(&d.closed) != 0 {
		return
	}
	line := Line{Level: Error, Text: "the policy", Err: err}
	if counters == d { // else no decision would say that the database answers again
		d.outage.failed(func(Line) {}, line, false)
	}
	d.log(line)
}

// history acquires the history of a site.
func (u *Use) history(at *Places) (*history.Writer, error) {
	d, err := u.database(&at.History)
	if err != nil {
		return nil, err
	}
	u.History = d
	p := u.proxy
	shared, failure := u.Share(fmt.Sprintf("history %#v %#v", at.Recorded, d.Settings), func() (Resource, error) {
		w, err := p.openHistory(d, at.Recorded)
		return w, err
	})
	if failure != nil {
		return nil, failure
	}
	return shared.(*history.Writer), nil
}
