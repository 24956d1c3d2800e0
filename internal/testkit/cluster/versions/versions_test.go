package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/download"
)

func TestRunOnEachAndReportFailures(t *testing.T) {
	cache, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	for _, r := range download.Releases { // all are in the cache
		folder, err := r.Folder(cache)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(testDSN, "postgres://elsewhere")
	command := []string{"sh", "-c", `echo "$PG_BINDIR $` + testDSN + `" >>"$0"; case $PG_BINDIR in *-15.*) exit 1 ;; esac`, log}
	err := run(context.Background(), "", 2, cache, command)
	if err == nil || !strings.HasSuffix(err.Error(), "failed on Postgres 15") {
		t.Errorf("%v, want that it failed on Postgres 15", err)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Fields(string(text)); len(lines) != len(download.Releases) {
		t.Errorf("the command ran with %q, want each server's folder and no %s", lines, testDSN)
	}
	if err := run(context.Background(), "16,18", 1, cache, command); err != nil {
		t.Error(err)
	}
	if err := run(context.Background(), "13", 1, cache, command); err == nil || !strings.Contains(err.Error(), "14,15,16,17,18") {
		t.Errorf("%v, want the versions that there are", err)
	}
}
