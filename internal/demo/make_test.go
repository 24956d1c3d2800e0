package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A user of the demo starts with make, so without the right Go the error must name the version, as README.md
// does.
func TestMakeNamesTheGoToInstall(t *testing.T) {
	text, err := os.ReadFile("../../xcaddy/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(text))[1]
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if minor := version[:strings.LastIndex(version, ".")]; !strings.Contains(string(readme),
		"You need Go "+minor+" or later and make.") {
		t.Errorf("README.md does not name Go %s, want the version of xcaddy/go.mod", minor)
	}
	old := filepath.Join(t.TempDir(), "go")
	if err := os.WriteFile(old, []byte("#!/bin/sh\necho go version go1.19.8 linux/amd64\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ program, want string }{
		"no Go":     {"/nowhere/go", "Go is not installed. Install Go " + version + " or later"},
		"an old Go": {old, "The installed Go is go1.19.8. Install Go " + version + " or later"},
	} {
		for _, target := range []string{"run", "build", "test"} {
			out, err := exec.Command("make", "-C", "../..", "GO="+test.program, target).CombinedOutput()
			if err == nil || !strings.Contains(string(out), test.want) {
				t.Errorf("with %s, make %s: error %v and output\n%s\nwant %q", name, target, err,
					out, test.want)
			}
		}
	}
}
