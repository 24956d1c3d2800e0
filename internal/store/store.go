// Package store is the store of a proxy that counts in Postgres.
package store

import (
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/local"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/store/shards"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Store counts in Postgres, or at this process's shares of limits, and registers the process as a proxy.
type Store struct {
	*shards.Store
	*local.Shares
	*registry.Registry
	closed int32 // atomic
}

// Open returns a store on db, and closes db in its Close. It does not touch the network yet. n registers the
// process as a proxy of the database; nil does not. The error is a *ratelimit.FieldError for an option that
// is out of its range, or a nil db.
func Open(db pgdb.DB, o engine.Options, n *registry.Node) (*Store, error) {
	shares := local.New(o.Now)
	o.Rows = shares
	counts, err := shards.Open(db, o)
	if err != nil {
		return nil, err
	}
	shares.Replace(counts)
	s := &Store{Store: counts, Shares: shares}
	s.Registry = registry.New(db, s, n,
		registry.Options{DisableMigration: o.DisableMigration, Random: o.Random, OnError: o.OnError})
	return s, nil
}

// Prepare starts, in the background, a connection, the migration if one is due, and the registration, so that
// the first decision does not wait for them.
func (s *Store) Prepare() {
	s.Store.Prepare()
	s.Start()
}

// Tick is called about once a second.
func (s *Store) Tick() {
	s.Store.Tick()
	s.Shares.Tick()
}

// Close implements ratelimit.Store. The row of the process in the registry says that it has ended. Calls in
// flight may finish, for up to a second. Units of leases are refunded, which takes up to another second.
func (s *Store) Close() {
	if atomic.CompareAndSwapInt32(&s.closed, 0, 1) {
		s.End()
		s.Store.Close()
	}
}
