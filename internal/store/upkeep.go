package store

import (
	"errors"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// upkeep makes notices and partitions of the ledger, and reports what killed processes held.
func (s *Store) upkeep() error {
	now := time.Now()
	err := errors.Join(s.sendNotices(now), s.reportLost(now))
	if now.Sub(s.keptAt) >= upkeepInterval {
		s.keptAt = now
		err = errors.Join(err, s.keepLedger(schema.LedgerUpkeep))
	}
	return err
}

// lostInterval is the time between two looks for killed processes in shards, and after a failure.
const lostInterval = 10 * time.Second

// reportLost reports and counts what killed processes held, unless another proxy does so.
func (s *Store) reportLost(now time.Time) error {
	if now.Before(s.lostAfter) {
		return nil
	}
	look := &pgdb.Statement{SQL: schema.LostUpkeep, Unnamed: true}
	err := s.runUpkeep(upkeepTimeout, look)
	if err != nil || look.Err != nil || len(s.engines) > 1 {
		s.lostAfter = now.Add(lostInterval)
	}
	if isLeft(look) || look.Code == pg.LockNotAvailable {
		return err
	}
	if err = errors.Join(err, look.Err); err != nil {
		return err
	}
	found, err := pg.Columns(look.Result)
	if len(found) == 2 {
		s.mu.Lock()
		s.lost += pg.Bigint(found[0])
		s.mu.Unlock()
		err = errors.New(string(found[1]))
	}
	return err
}

// sumTimeout bounds the sum of a day of the ledger.
const sumTimeout = 10 * time.Minute

// sumLedger sums a day of the ledger, if one is left or an hour is over.
func (s *Store) sumLedger() error {
	now := time.Now()
	if now.Sub(s.summedAt) < upkeepInterval {
		return nil
	}
	sum := &pgdb.Statement{SQL: schema.TotalsUpkeep, Unnamed: true}
	err := s.runUpkeep(sumTimeout, sum)
	if more := pg.Bigints(sum.Result); err != nil || len(more) != 1 || more[0] == 0 {
		s.summedAt = now
	}
	if err == nil && !isLeft(sum) {
		err = sum.Err
	}
	return err
}

// isLeft reports whether a role without rights leaves a statement of the upkeep to other proxies.
func isLeft(s *pgdb.Statement) bool {
	return s.Code == pg.InsufficientPrivilege || s.Code == pg.UndefinedFunction
}

// runUpkeep runs statements of the upkeep.
func (s *Store) runUpkeep(timeout time.Duration, statements ...*pgdb.Statement) error {
	if s.sole != nil {
		timeout = soleTimeout
		s.sole <- struct{}{}
		defer func() { <-s.sole }()
	}
	return s.db.Run(s.closing, timeout, statements)
}

const (
	// upkeepTimeout bounds notices and the partitions of the ledger.
	upkeepTimeout = 30 * time.Second
	// soleTimeout bounds the time for which a heartbeat waits for the upkeep. A proxy is live for ten seconds
	// after a heartbeat.
	soleTimeout = 4 * time.Second
)

// upkeepInterval is the time between two upkeeps of the ledger.
const upkeepInterval = time.Hour

// keepLedger runs schema.LedgerUpkeep, or schema.LedgerUpkeepOf a day. On Citus they are for all shards.
func (s *Store) keepLedger(sql string, args ...any) error {
	keep := &pgdb.Statement{SQL: sql, Args: args, Unnamed: true}
	if err := s.runUpkeep(upkeepTimeout, keep); err != nil {
		return err
	}
	return keep.Err
}
