package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// defaultConfig is the configuration that Caddy loads if no other is named.
const defaultConfig = "Caddyfile"

const wantDatabase = "a database: give --dsn, set " + settings.EnvDSN + ", or name in --config a Caddyfile with a dsn"

// dataset is something that may be in a database of its own.
type dataset int

// The values of dataset.
const (
	ofPolicy dataset = iota
	ofCounters
	ofHistory
	ofAll    // for commands that need all in one database
	ofNone   // for commands that need none
	datasets = ofAll
)

// databases are the DSNs of the datasets, and of ofAll that of the counters.
type databases [datasets + 1]string

func (d *databases) same() bool { return d[ofPolicy] == d[ofCounters] && d[ofHistory] == d[ofCounters] }

// databases are the DSN of a flag, else those of the configuration that a flag names, else that of the
// environment, else those of the default configuration. A configuration without a DSN leaves it to the
// environment.
func (t *tool) databases() (databases, error) {
	environment := os.Getenv(settings.EnvDSN)
	if one := cmp.Or(t.dsn, environment); t.dsn != "" || t.config == "" && environment != "" {
		return databases{one, one, one, one}, nil
	}
	all, err := t.configured(cmp.Or(t.config, defaultConfig))
	switch {
	case t.config == "" && (errors.Is(err, fs.ErrNotExist) || err == nil && all[ofCounters] == "" && environment == ""):
		return all, &ratelimit.FieldError{Field: "dsn", Want: wantDatabase}
	case err != nil:
		return all, err
	case all[ofCounters] == "" && environment == "":
		return all, &ratelimit.FieldError{Field: "dsn", Want: "in " + t.config + " or in the environment variable " + settings.EnvDSN}
	}
	for of := range all {
		all[of] = cmp.Or(all[of], all[ofCounters], environment)
	}
	return all, nil
}

// configured are the DSNs in a configuration, without their placeholders. One is "" if there is none.
func (t *tool) configured(file string) (all databases, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return all, fmt.Errorf("reading the configuration: %w", err)
	}
	adapter := t.adapter
	if adapter == "" && filepath.Ext(file) != ".json" {
		adapter = "caddyfile"
	}
	if adapter != "" {
		a := caddyconfig.GetAdapter(adapter)
		if a == nil {
			return all, &ratelimit.FieldError{Field: "adapter", Value: adapter, Want: "a config adapter of this Caddy"}
		}
		if text, _, err = a.Adapt(text, map[string]any{"filename": file}); err != nil {
			return all, fmt.Errorf("reading the configuration: %w", err)
		}
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return all, fmt.Errorf("reading %s as JSON: %w", file, err)
	}
	for of, found := range dsnsIn(config) {
		if len(found) > 1 {
			return all, fmt.Errorf("%s names %d databases: choose one with --dsn", file, len(found))
		}
		if len(found) == 1 {
			if all[of], _, err = t.expand(found[0]); err != nil {
				return all, err
			}
		}
	}
	return all, nil
}

// dsnsIn returns the different DSNs of the app and of the handlers in a configuration, by dataset.
func dsnsIn(config map[string]any) [datasets][]string {
	var found [datasets][]string
	const other = dataset(-1)
	var search func(value any, of dataset)
	search = func(value any, of dataset) {
		switch value := value.(type) {
		case []any:
			for _, item := range value {
				search(item, other)
			}
		case map[string]any:
			if value["handler"] == "pg_ratelimit" || value["handler"] == "pg_ratelimit_page" {
				of = ofCounters
			}
			if dsn, ok := value["dsn"].(string); of != other && ok && strings.TrimSpace(dsn) != "" && !slices.Contains(found[of], dsn) {
				found[of] = append(found[of], dsn)
			}
			for name, item := range value {
				inner := other
				switch {
				case name == "pg_ratelimit":
					inner = ofCounters
				case of == ofCounters && name == "policy":
					inner = ofPolicy
				case of == ofCounters && name == "history":
					inner = ofHistory
				}
				search(item, inner)
			}
		}
	}
	search(config, other)
	return found
}
