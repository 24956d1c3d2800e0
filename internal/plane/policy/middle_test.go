package policy_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// controlledDB is a DB that forwards the statements of a policy. It can fail, delay results, and switch to
// another database.
type controlledDB struct {
	mu           sync.Mutex
	db           pgdb.DB
	down         bool
	hold         chan struct{} // look-ups end when it is closed; if nil, at once
	held         int           // the number of delayed results
	lookups      int           // look-ups in flight
	maxLookups   int           // the maximum of lookups
	askedDigests [][]string    // the digests of each look-up
}

// newControlledPolicy creates a database with the user ann, and a policy that reads it through a
// controlledDB.
func newControlledPolicy(t testing.TB) (*testDB, *controlledDB, *policy.Policy) {
	d := newTestDB(t)
	d.addUser("ann", "free")
	m := &controlledDB{db: d.openDB()}
	p := d.newPolicyOn(m, policy.Settings{})
	refresh(t, p)
	return d, m, p
}

func (m *controlledDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	// The statement that reads the banned keys has no arguments.
	identities := strings.Contains(statements[0].SQL, "rate_limit_api_keys k") && len(statements[0].Args) > 0
	m.mu.Lock()
	db, down, hold := m.db, m.down, m.hold
	if identities {
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.lookups--
		}()
		m.lookups++
		m.maxLookups = max(m.maxLookups, m.lookups)
		if args := statements[0].Args; len(args) == 2 {
			m.askedDigests = append(m.askedDigests, args[0].([]string))
		}
	}
	m.mu.Unlock()
	if down {
		return pgdb.ErrConnectionLost
	}
	err := db.Run(ctx, timeout, statements)
	if identities && hold != nil {
		m.mu.Lock()
		m.held++
		m.mu.Unlock()
		<-hold
	}
	return err
}

// awaitHeld waits for a look-up with a delayed result.
func (m *controlledDB) awaitHeld(t testing.TB) {
	t.Helper()
	await.Within(t, time.Minute, "the look-up",
		func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.held > 0 })
}

func (m *controlledDB) Exec(ctx context.Context, timeout time.Duration, sql string) error {
	m.mu.Lock()
	db, down := m.db, m.down
	m.mu.Unlock()
	if down {
		return pgdb.ErrConnectionLost
	}
	return db.Exec(ctx, timeout, sql)
}

func (m *controlledDB) Close() { m.db.Close() }

func (m *controlledDB) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}
