// Package store puts the stores of a proxy together that count in Postgres.
package store

import (
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/local"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/store/shards"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Store is a chain of stores, and the registration of the process in the registry of proxies.
type Store struct {
	*local.Store
	*registry.Registry
	base   *engine.Store // of the database
	closed int32         // atomic
}

// Open returns a store on db, and closes db in its Close. It does not touch the network
// yet. n registers the process as a proxy of the database; nil does not. The error is a *ratelimit.FieldError for an
// option that is out of its range, or a nil db.
func Open(db pgdb.DB, o engine.Options, n *registry.Node) (*Store, error) {
	rows := local.NewRows(o.Now)
	o.Rows = rows
	var base *engine.Store
	last := func(db pgdb.DB, place chain.Place) (chain.Store, error) {
		of := o
		of.Place = place
		s, err := engine.New(db, of)
		if err != nil {
			return nil, err
		}
		if base == nil {
			base = s
		}
		return s, nil
	}
	next, err := shards.Open(db, last, o.OnError)
	if err != nil {
		return nil, err
	}
	s := local.New(next, rows)
	return &Store{Store: s, base: base, Registry: registry.New(db, s, n,
		registry.Options{DisableMigration: o.DisableMigration, Random: o.Random, OnError: o.OnError})}, nil
}

// Health returns the health of the server of the database.
func (s *Store) Health() *health.Health { return s.base.Health() }

// Prepare starts, in the background, what the first decision would otherwise wait for: a
// connection, and the migration if one is due. It also begins the registration.
func (s *Store) Prepare() {
	s.Store.Prepare()
	s.Start()
}

// Close implements ratelimit.Store. The row of the process in the registry says that it has ended. Calls in flight may
// finish, for up to a second. Units of leases are given back, which takes up to another second.
func (s *Store) Close() {
	if atomic.CompareAndSwapInt32(&s.closed, 0, 1) {
		s.End()
		s.Store.Close()
	}
}
