package engine_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// replacedDB is a DB that changes the identity of its server.
type replacedDB struct {
	pgdb.DB
	started int64 // an offset of the start time in schema.ServerIdentity; atomic
	reads   int64 // the number of reads of the identity; atomic
}

func (d *replacedDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	err := d.DB.Run(ctx, timeout, statements)
	for _, s := range statements {
		if s.SQL == engine.ServerSQL && s.Rows == 1 {
			atomic.AddInt64(&d.reads, 1)
			started, changes, _ := strings.Cut(string(s.Result[4:]), " ")
			n, _ := strconv.ParseInt(started, 10, 64)
			identity := fmt.Sprint(n+atomic.LoadInt64(&d.started), " ", changes)
			s.Result = append(binary.BigEndian.AppendUint32(s.Result[:0], uint32(len(identity))), identity...)
		}
	}
	return err
}

// holdUnits sends hits until leases have decided 10 of them. It then waits until no charge or refund is in
// flight: the row's charge is then the sum of the hits and the unused units. At least one unit must be left.
func holdUnits(t *testing.T, s *testDB, store *store.Store) {
	t.Helper()
	passed := int64(0)
	await.Within(t, testTimeout, "10 requests decided by a lease", func() bool {
		passed++
		return takeAll(t, store, leasedHit) && store.Stats()[engine.Leased] >= 10
	})
	await.Within(t, testTimeout, "the units in flight to arrive", func() bool {
		leased := store.Stats()[engine.LeasedUnits]
		return leased > 0 && chargedUnits(t, s, leasedHit) == passed+leased &&
			store.Stats()[engine.LeasedUnits] == leased
	})
}

// openLeased opens a store that holds leased units, on a DB of its own.
func openLeased(t *testing.T, s *testDB) (*replacedDB, *store.Store) {
	t.Helper()
	d := &replacedDB{DB: s.openDB("")}
	opened := s.openProxy(d, longLeaseOptions, nil)
	opened.Prepare()
	holdUnits(t, s, opened)
	return d, opened
}

// If a standby without the last charges has replaced the server, or a backup or a dump was restored, the rows
// lack the charges of the store's leases. Therefore the store neither uses nor refunds the units of these
// leases. It also drops its remembered refusals, and sends hits on their rows to the database again.
func TestReplacedServerEndsLeases(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(s *testDB, d *replacedDB){
		"started again": func(_ *testDB, d *replacedDB) { atomic.StoreInt64(&d.started, 1) },
		"the policy restored from a dump": func(s *testDB, _ *replacedDB) {
			s.exec("ALTER TABLE rate_limit_changes RENAME TO before; ALTER INDEX rate_limit_changes_pkey " +
				"RENAME TO before_pkey; CREATE TABLE rate_limit_changes (LIKE before INCLUDING ALL)")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestDB(t)
			d, store := openLeased(t, s)
			await.Within(t, testTimeout, "the first check of the server",
				func() bool { return atomic.LoadInt64(&d.reads) > 1 })
			full := hitOn("full", 1, true)
			takeOne(t, store, full)
			if takeOne(t, store, full).Allowed || store.Stats()[engine.RememberedRefusals] != 1 {
				t.Fatalf("%d refusals are remembered, want 1", store.Stats()[engine.RememberedRefusals])
			}
			s.exec("DELETE FROM rate_limit_durable WHERE prefix = 'full'; " +
				"UPDATE rate_limit_durable SET count = 5")
			lose(s, d)
			await.Within(t, testTimeout, "the end of the leases",
				func() bool { return store.Stats()[engine.LeasedUnits] == 0 })
			await.Within(t, testTimeout, "the end of the refusal",
				func() bool { return takeOne(t, store, full).Allowed })
			store.Close()
			check.Equal(t, "charged units after the leases", chargedUnits(t, s, leasedHit), 5)
			s.requireNoReports()
		})
	}
}
