package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// replacedDB changes what the server says of itself.
type replacedDB struct {
	pgdb.DB
	started, changes int64 // are added to the last digits of schema.ServerIdentity; atomic
	down             int32 // 1 if the server does not answer; atomic
	asked            int64 // atomic
}

func (d *replacedDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	if atomic.LoadInt32(&d.down) == 1 {
		return errors.New("connection refused")
	}
	err := d.DB.Run(ctx, statements)
	for _, s := range statements {
		if s.SQL == engine.ServerSQL && s.Rows == 1 {
			atomic.AddInt64(&d.asked, 1)
			started, changes, _ := strings.Cut(string(s.Result[4:]), " ")
			first, _ := strconv.ParseInt(started, 10, 64)
			second, _ := strconv.ParseInt(changes, 10, 64)
			text := fmt.Sprint(first+atomic.LoadInt64(&d.started), " ", second+atomic.LoadInt64(&d.changes))
			s.Result = append(binary.BigEndian.AppendUint32(s.Result[:0], uint32(len(text))), text...)
		}
	}
	return err
}

// The server was replaced by a standby that lacks the last charges, a backup of its files was put back, or a
// dump of the database was restored. The units of leases were charged on rows that do not say so: no unit is
// used or refunded. A row that was used up is asked for again.
func TestUnitsOfAReplacedServerAreNotUsed(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(s *site, d *replacedDB){
		"started again": func(_ *site, d *replacedDB) { atomic.StoreInt64(&d.started, 1) },
		"the policy restored from a dump": func(s *site, _ *replacedDB) {
			s.exec("ALTER TABLE rate_limit_changes RENAME TO rate_limit_changes_before; CREATE TABLE " +
				"rate_limit_changes (LIKE rate_limit_changes_before)")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.exec("CREATE TABLE rate_limit_changes ()")
			d := &replacedDB{DB: s.db("")}
			store := s.proxy(d, lasting, registry.Node{})
			store.Prepare()
			holdUnits(t, s, store)
			await.Within(t, longTime, "the first look at the server",
				func() bool { return atomic.LoadInt64(&d.asked) > 1 })
			full := hitOn("full", 1, true)
			takeOne(t, store, full)
			if takeOne(t, store, full).Allowed || store.Stats()[engine.BlockedKeys] != 1 {
				t.Fatal("no refusal is remembered")
			}
			s.exec("DELETE FROM rate_limit_durable WHERE prefix = 'full'")
			s.exec("UPDATE rate_limit_durable SET count = 5")
			lose(s, d)
			await.Within(t, longTime, "the end of the leases",
				func() bool { return store.Stats()[engine.LeasedUnits] == 0 })
			await.Within(t, longTime, "the end of the refusal",
				func() bool { return takeOne(t, store, full).Allowed })
			store.Close()
			if n := used(t, s, leasedHit); n != 5 {
				t.Errorf("the row has %d units after the leases have ended, want 5: it was not charged "+
					"for theirs", n)
			}
			s.nothingReported()
		})
	}
}

// The tables of the policy are made while a proxy runs, or dropped: its units stay.
func TestUnitsOutlastANewPolicy(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := &replacedDB{DB: s.db("")}
	store := s.proxy(d, lasting, registry.Node{})
	store.Prepare()
	holdUnits(t, s, store)
	looked := func() {
		asked := atomic.LoadInt64(&d.asked)
		await.Within(t, longTime, "two looks at the server",
			func() bool { return atomic.LoadInt64(&d.asked) > asked+1 })
	}
	for _, sql := range []string{"SELECT 1", "CREATE TABLE rate_limit_changes ()",
		"DROP TABLE rate_limit_changes"} {
		s.exec(sql)
		looked()
		if store.Stats()[engine.LeasedUnits] == 0 {
			t.Errorf("no units are held after %s", sql)
		}
	}
}

// A store that is not registered looks at the server after an outage only, and compares it with that of the
// beginning.
func TestTheFirstOutageEndsUnitsOfAReplacedServer(t *testing.T) {
	s := newSite(t)
	d := &replacedDB{DB: s.db("")}
	store := s.storeOn(d, lasting)
	holdUnits(t, s, store)
	atomic.StoreInt64(&d.started, 1)
	atomic.StoreInt32(&d.down, 1)
	h := hitOn("other", 10, true)
	if err := store.Take(context.Background(), longTime, []ratelimit.Hit{h},
		make([]ratelimit.Decision, 1)); err == nil {
		t.Error("a decision without a server")
	}
	atomic.StoreInt32(&d.down, 0)
	await.Within(t, longTime, "the end of the leases",
		func() bool { return store.Stats()[engine.LeasedUnits] == 0 })
}
