package edge

import (
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// MemoryDSN counts in this process.
	MemoryDSN = "memory"

	// memoryNotice is for the log when a store with MemoryDSN is opened.
	memoryNotice = "dsn is memory: limits are counted in this process only"

	// WantDSN says what a DSN must be.
	WantDSN = "a Postgres URL or key=value pairs, or memory"

	// wantPostgres is WantDSN for what cannot be in this process.
	wantPostgres = "a Postgres URL or key=value pairs"

	// EnvDSN is the environment variable for a configuration without a DSN.
	EnvDSN = "DATABASE_URL"

	// envNoMigration is an environment variable that the npm library has too.
	envNoMigration = "PG_RATELIMIT_DISABLE_AUTO_MIGRATE"

	// defaultMaxConns is that of both drivers.
	defaultMaxConns = 8
)

// StoreSettings say where limits are counted, and how.
type StoreSettings struct {
	DSN                string  // a Postgres address, MemoryDSN, or "" for EnvDSN
	From               string  // see DSN
	MaxConns           int     // 0 is the DSN's pool_max_conns, or 8
	AutoMigrate        bool    // create or upgrade the tables on first use
	CleanupProbability float64 // of a cleanup after a statement; 0 is never
	InMemoryBlock      bool    // refuse used-up keys without asking the database
	NodeName           string  // of this proxy in the registry; "" is the host name and the kind of the proxy
	Region             string  // where it runs; "" is unknown

	// HistoryOnly is for a database that has the history, and in which nothing is counted.
	HistoryOnly bool
}

// readProbability reads StoreSettings.CleanupProbability.
func readProbability(to *Settings, text string) error {
	p, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(p) || p < 0 || p > 1 {
		return errWant
	}
	to.Store.CleanupProbability = p
	return nil
}

// Resolve fills in the settings that the environment and defaults give.
// Resolved settings that are equal are for the same store. where says, for an error,
// where a DSN can be set other than in the environment.
func (s StoreSettings) Resolve(where string) (StoreSettings, error) {
	noMigration, err := migrationDisabled()
	if err != nil {
		return s, err
	}
	if s.DSN == "" {
		s.DSN = os.Getenv(EnvDSN)
	}
	switch s.DSN {
	case "":
		return s, &ratelimit.FieldError{Field: "dsn", Want: WantDSN + ": " + where + " or in the environment variable " + EnvDSN}
	case MemoryDSN:
		return StoreSettings{DSN: MemoryDSN}, nil
	}
	if noMigration {
		s.AutoMigrate = false
	}
	if s.MaxConns == 0 && !strings.Contains(s.DSN, "pool_max_conns") {
		s.MaxConns = defaultMaxConns
	}
	return s, nil
}

// CheckEnvironment returns an error for an environment variable with a wrong value.
func CheckEnvironment() error {
	_, err := migrationDisabled()
	return err
}

// migrationDisabled reads the environment variable that turns migration off.
func migrationDisabled() (bool, error) {
	text := os.Getenv(envNoMigration)
	if text == "" {
		return false, nil
	}
	disabled, err := strconv.ParseBool(text)
	if err != nil {
		return false, &ratelimit.FieldError{Field: "environment variable " + envNoMigration, Value: text, Want: "true or false"}
	}
	return disabled, nil
}

// Postgres is a store that counts in Postgres; nil for another kind of store.
func Postgres(counters ratelimit.Store) *store.Store {
	s, ok := counters.(*store.Store)
	if !ok {
		return nil
	}
	return s
}
