package policy_test

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// middle is a DB between a policy and its database. It can fail, delay answers, and switch to another
// database.
type middle struct {
	mu      sync.Mutex
	db      pgdb.DB
	down    bool
	hold    chan struct{} // answers about identities wait until it is closed; nil waits for nothing
	held    int           // answers that wait, or have waited
	lookups int           // statements about identities under way
	most    int           // the most of them at once
	asked   [][]string    // the digests that each look-up asks for
}

var errDown = errors.New("connection refused")

func (m *middle) Run(ctx context.Context, statements []*pgdb.Statement) error {
	// The statement that reads all banned keys has no arguments.
	identities := strings.Contains(statements[0].SQL, "rate_limit_api_keys k") && len(statements[0].Args) > 0
	m.mu.Lock()
	db, down, hold := m.db, m.down, m.hold
	if identities {
		m.lookups++
		m.most = max(m.most, m.lookups)
		if args := statements[0].Args; len(args) == 2 {
			m.asked = append(m.asked, args[0].([]string))
		}
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if identities {
			m.lookups--
		}
	}()
	if down {
		return errDown
	}
	err := db.Run(ctx, statements)
	if identities && hold != nil {
		m.mu.Lock()
		m.held++
		m.mu.Unlock()
		<-hold
	}
	return err
}

func (m *middle) Exec(ctx context.Context, sql string) error {
	m.mu.Lock()
	db, down := m.db, m.down
	m.mu.Unlock()
	if down {
		return errDown
	}
	return db.Exec(ctx, sql)
}

func (m *middle) Close() { m.db.Close() }

func (m *middle) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}
