package settings

import (
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

const (
	// MemoryDSN is the DSN of counters in this process.
	MemoryDSN = "memory"

	// WantDSN describes a valid DSN, for errors.
	WantDSN = WantPostgres + ", or memory"

	// WantPostgres describes a valid DSN of a server, for errors.
	WantPostgres = "a Postgres URL or key=value pairs"

	// EnvDSN is the environment variable for a configuration without a DSN.
	EnvDSN = "DATABASE_URL"

	// envNoMigration is the environment variable that turns migration off, here and in the npm library.
	envNoMigration = "PG_RATELIMIT_DISABLE_AUTO_MIGRATE"

	// defaultMaxConns is the default of Connection.MaxConns, for both drivers.
	defaultMaxConns = 8
)

// Connection configures where and how limits are counted.
type Connection struct {
	DSN                string  // a Postgres address, MemoryDSN, or "" for EnvDSN
	Source             string  // the file or the placeholders from which DSN was read, or ""
	MaxConns           int     // 0 means the DSN's pool_max_conns, or 8
	AutoMigrate        bool    // create or upgrade the tables on first use
	CleanupProbability float64 // the probability of a cleanup after a statement
	RememberedRefusals bool    // refuse used-up keys from memory
	// NodeName names this proxy in the registry; "" means the host name and the kind of the proxy.
	NodeName string
	Region   string // the place of the proxy; "" if unknown

	// HistoryOnly reports that the database has the history and no counters.
	HistoryOnly bool
}

// readProbability reads Connection.CleanupProbability.
func readProbability(dst *Settings, text string) error {
	p, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(p) || p < 0 || p > 1 {
		return errWant
	}
	dst.Connection.CleanupProbability = p
	return nil
}

// Resolve completes the settings from the environment and the defaults. Equal resolved settings describe the
// same store. places says where the configuration may have a DSN, for the error about a missing DSN.
func (s Connection) Resolve(places string) (Connection, error) {
	noMigration, err := MigrationDisabled()
	if err != nil {
		return s, err
	}
	if s.DSN == "" {
		s.DSN = os.Getenv(EnvDSN)
	}
	switch s.DSN {
	case "":
		return s, option.Invalid("dsn", "",
			WantDSN+": "+places+" or in the environment variable "+EnvDSN)
	case MemoryDSN:
		return Connection{DSN: MemoryDSN}, nil
	}
	if noMigration {
		s.AutoMigrate = false
	}
	if s.MaxConns == 0 && !strings.Contains(s.DSN, "pool_max_conns") {
		s.MaxConns = defaultMaxConns
	}
	return s, nil
}

// MigrationDisabled reports whether an environment variable turns migration off.
func MigrationDisabled() (bool, error) {
	text := os.Getenv(envNoMigration)
	if text == "" {
		return false, nil
	}
	disabled, err := strconv.ParseBool(text)
	if err != nil {
		return false, option.Invalid("environment variable "+envNoMigration, text, "true or false")
	}
	return disabled, nil
}
