package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// harmfulSettings lists settings of a database that would slow statements down or end them. want is the value
// that a statement of the DB must see; "": not checked.
var harmfulSettings = []struct{ name, value, want string }{
	{"jit_above_cost", "0", ""}, // testSettings checks jit instead
	{"statement_timeout", "1500ms", "0"},
	{"lock_timeout", "1ms", "0"},
	{"idle_in_transaction_session_timeout", "1ms", "0"},
	{"transaction_timeout", "1600ms", "0"},
	{"plan_cache_mode", "force_generic_plan", "auto"},
	{"work_mem", "64kB", "4MB"},
	{"enable_indexscan", "off", "on"},
	{"enable_nestloop", "off", "on"},
	{"enable_seqscan", "off", "on"},
	{"enable_sort", "off", "on"},
	{"join_collapse_limit", "1", "8"},
	{"from_collapse_limit", "1", "8"},
	{"parallel_setup_cost", "0", ""}, // testSettings checks max_parallel_workers_per_gather instead
}

// testSettings checks that the harmful settings of a database do not apply to a statement, neither in a
// transaction nor by itself. They apply to a statement with Alone. If the database has no harmful settings,
// no setting changes, except that unnamed statements run without JIT.
func testSettings(t *testing.T, d *db) {
	show := func(name string) string {
		s := statement("SELECT coalesce(current_setting($1::text, true), 'none')", name)
		d.run(s)
		return cells(d.t, s)[0]
	}
	d.ping()
	plainWorkers := d.defaultSetting("max_parallel_workers_per_gather")
	if jit, workers := show("jit"), show("max_parallel_workers_per_gather"); jit != d.defaultSetting("jit") ||
		workers != plainWorkers {
		t.Errorf("without harmful settings: jit %s, %s workers, want the defaults", jit, workers)
	}
	unnamed := statement("SELECT current_setting('jit')")
	unnamed.Unnamed = true
	d.run(unnamed)
	if got := cells(d.t, unnamed)[0]; got != "off" {
		t.Errorf("an unnamed statement runs with jit %s, want off", got)
	}
	var wants []string
	for _, s := range harmfulSettings {
		if show(s.name) == "none" {
			continue // only newer servers have the setting
		}
		d.exec(fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET %s = %%L', "+
			"current_database(), '%s'); END $$", s.name, s.value))
		if s.want != "" {
			wants = append(wants, s.name+" "+s.want)
		}
	}
	fresh := d.open.connect(t, d.dsn)
	for use := range 3 {
		for _, want := range append([]string{"jit off", "max_parallel_workers_per_gather 0"}, wants...) {
			name, value, _ := strings.Cut(want, " ")
			s := statement("SELECT current_setting($1::text)", name)
			fresh.run(append(transaction(statement("SELECT 1"), s), statement("SELECT 2"))...)
			if got := cells(fresh.t, s)[0]; got != value {
				t.Errorf("use %d: %s is %s, want %s", use, name, got, value)
			}
		}
	}
	fresh.run(statement("SELECT pg_sleep(1.7)::text")) // longer than the timeouts in harmfulSettings
	// A statement with Alone runs with the database's settings.
	alone := statement("SHOW max_parallel_workers_per_gather")
	alone.Alone = true
	fresh.run(alone)
	if got := cells(fresh.t, alone)[0]; got != plainWorkers {
		t.Errorf("a statement alone has %s workers, want %s", got, plainWorkers)
	}
}

// defaultSetting returns the default value of a setting.
func (d *db) defaultSetting(name string) string {
	return cluster.Query[string](d.t, d.dsn, "SELECT boot_val FROM pg_settings WHERE name = $1", name)
}
