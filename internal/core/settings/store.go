package settings

import (
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// MemoryDSN counts in this process.
	MemoryDSN = "memory"

	// WantDSN says what a DSN must be.
	WantDSN = WantPostgres + ", or memory"

	// WantPostgres says what the DSN of a server must be.
	WantPostgres = "a Postgres URL or key=value pairs"

	// EnvDSN is the environment variable for a configuration without a DSN.
	EnvDSN = "DATABASE_URL"

	// envNoMigration is an environment variable that the npm library has too.
	envNoMigration = "PG_RATELIMIT_DISABLE_AUTO_MIGRATE"

	// defaultMaxConns is the default of both drivers.
	defaultMaxConns = 8
)

// Store says where limits are counted, and how.
type Store struct {
	DSN                string  // a Postgres address, MemoryDSN, or "" for EnvDSN
	From               string  // the file or placeholders that hold DSN, or ""
	MaxConns           int     // 0 means the DSN's pool_max_conns, or 8
	AutoMigrate        bool    // create or upgrade the tables on first use
	CleanupProbability float64 // of a cleanup after a statement; 0 is never
	InMemoryBlock      bool    // refuse used-up keys without asking the database
	// of this proxy in the registry; "" means the host name and the kind of the proxy
	NodeName string
	Region   string // where the proxy runs; "" is unknown

	// HistoryOnly is for a database that has the history, and in which nothing is counted.
	HistoryOnly bool
}

// readProbability reads Store.CleanupProbability.
func readProbability(to *Settings, text string) error {
	p, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(p) || p < 0 || p > 1 {
		return errWant
	}
	to.Store.CleanupProbability = p
	return nil
}

// Resolve fills in the settings that the environment and defaults give. Resolved settings that are equal are
// for the same store. where says, for an error, where a DSN can be set other than in the environment.
func (s Store) Resolve(where string) (Store, error) {
	noMigration, err := MigrationDisabled()
	if err != nil {
		return s, err
	}
	if s.DSN == "" {
		s.DSN = os.Getenv(EnvDSN)
	}
	switch s.DSN {
	case "":
		want := WantDSN + ": " + where + " or in the environment variable " + EnvDSN
		return s, &ratelimit.FieldError{Field: "dsn", Want: want}
	case MemoryDSN:
		return Store{DSN: MemoryDSN}, nil
	}
	if noMigration {
		s.AutoMigrate = false
	}
	if s.MaxConns == 0 && !strings.Contains(s.DSN, "pool_max_conns") {
		s.MaxConns = defaultMaxConns
	}
	return s, nil
}

// MigrationDisabled reads the environment variable that turns migration off.
func MigrationDisabled() (bool, error) {
	text := os.Getenv(envNoMigration)
	if text == "" {
		return false, nil
	}
	disabled, err := strconv.ParseBool(text)
	if err != nil {
		field := "environment variable " + envNoMigration
		return false, &ratelimit.FieldError{Field: field, Value: text, Want: "true or false"}
	}
	return disabled, nil
}
