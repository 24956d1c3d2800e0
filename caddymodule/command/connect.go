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

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// defaultConfig is the configuration that Caddy loads if no other is named.
const defaultConfig = "Caddyfile"

const wantDatabase = "a database: give --dsn, set " + edge.EnvDSN + ", or name in --config a Caddyfile with a dsn"

// database is the DSN of the database that the flags, the environment or a configuration name.
func (t *tool) database() (string, error) {
	dsn, err := t.chosen()
	if err != nil {
		return "", err
	}
	if dsn == edge.MemoryDSN {
		return "", &ratelimit.FieldError{Field: "dsn", Value: dsn, Want: "a Postgres URL or key=value pairs: counters in memory are only in the proxy"}
	}
	return dsn, nil
}

// chosen is the DSN of a flag, else of the configuration that a flag names, else of the environment, else
// of the default configuration. A configuration without a DSN leaves it to the environment.
func (t *tool) chosen() (string, error) {
	environment := os.Getenv(edge.EnvDSN)
	if t.dsn != "" || t.config == "" && environment != "" {
		return cmp.Or(t.dsn, environment), nil
	}
	dsn, err := t.configured(cmp.Or(t.config, defaultConfig))
	switch {
	case t.config == "" && (errors.Is(err, fs.ErrNotExist) || err == nil && dsn == ""):
		return "", &ratelimit.FieldError{Field: "dsn", Want: wantDatabase}
	case err != nil:
		return "", err
	case dsn == "" && environment == "":
		return "", &ratelimit.FieldError{Field: "dsn", Want: "in " + t.config + " or in the environment variable " + edge.EnvDSN}
	}
	return cmp.Or(dsn, environment), nil
}

// configured is the DSN in a configuration, without its placeholders. It is "" if there is
// none.
func (t *tool) configured(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading the configuration: %w", err)
	}
	adapter := t.adapter
	if adapter == "" && filepath.Ext(file) != ".json" {
		adapter = "caddyfile"
	}
	if adapter != "" {
		a := caddyconfig.GetAdapter(adapter)
		if a == nil {
			return "", &ratelimit.FieldError{Field: "adapter", Value: adapter, Want: "a config adapter of this Caddy"}
		}
		if text, _, err = a.Adapt(text, map[string]any{"filename": file}); err != nil {
			return "", fmt.Errorf("reading the configuration: %w", err)
		}
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("reading %s as JSON: %w", file, err)
	}
	found := dsnsIn(config)
	if len(found) > 1 {
		return "", fmt.Errorf("%s names %d databases: choose one with --dsn", file, len(found))
	}
	if len(found) == 0 {
		return "", nil
	}
	dsn, _, err := t.expand(found[0])
	return dsn, err
}

// dsnsIn returns the different DSNs of the app and of the handlers in a configuration.
func dsnsIn(config map[string]any) []string {
	var found []string
	var search func(value any, isOurs bool)
	search = func(value any, isOurs bool) {
		switch value := value.(type) {
		case []any:
			for _, item := range value {
				search(item, false)
			}
		case map[string]any:
			isOurs = isOurs || value["handler"] == "pg_ratelimit" || value["handler"] == "pg_ratelimit_page"
			if dsn, ok := value["dsn"].(string); isOurs && ok && strings.TrimSpace(dsn) != "" && !slices.Contains(found, dsn) {
				found = append(found, dsn)
			}
			for name, item := range value {
				search(item, name == "pg_ratelimit")
			}
		}
	}
	search(config, false)
	return found
}
