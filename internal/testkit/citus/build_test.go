package citus

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// programs are the programs that build.sh finds: a Postgres without headers on a machine where apt-get
// answers with the plan of the test, and where this process is root.
var programs = map[string]string{
	"postgres":   "echo 'postgres (PostgreSQL) 15.1'",
	"pg_config":  "echo /missing",
	"id":         "echo 0",
	"dpkg-query": "echo 15.1-0",
	"apt-get":    `echo "$*" >>"$LOG"; case "$*" in *-sqy*) echo "$PLAN" ;; install*) exit 9 ;; esac`,
}

// The build installs what it lacks in the versions of the installed Postgres, and only if apt-get changes no
// installed package.
func TestBuildChangesNoInstalledPackage(t *testing.T) {
	script, err := os.ReadFile("build.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, script := range programs {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const added = "Inst libpq-dev (15.1-0 Debian:12 [amd64])\nConf libpq-dev (15.1-0 Debian:12 [amd64])\n"
	for plan, changes := range map[string]string{
		added: "",
		added + "Inst libpq5 [15.1-0] (15.2-0) []\nInst postgresql-15 [15.1-0] (15.2-0)": "libpq5 " +
			"postgresql-15",
		added + "Remv libreadline8 [8.2-1]": "libreadline8",
	} {
		log := filepath.Join(t.TempDir(), "log")
		cmd := exec.Command("bash", "-c", string(script), "build.sh", "build.sh")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "PG_BINDIR="+dir, "LOG="+log,
			"PLAN="+plan, "CITUS_CACHE="+t.TempDir(), "CI=")
		out, err := cmd.CombinedOutput()
		refused := strings.Contains(string(out), "would change installed packages ("+changes+")")
		if err == nil || refused != (changes != "") {
			t.Errorf("with the plan\n%s\nbuild.sh: error %v, want one, and a message that names %q:\n%s",
				plan, err, changes, out)
		}
		ran, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(ran), "postgresql-server-dev-15=15.1-0") ||
			strings.Contains(string(ran), "install -qy") != (changes == "") {
			t.Errorf("with the plan\n%s\napt-get ran as\n%s", plan, ran)
		}
	}
}
