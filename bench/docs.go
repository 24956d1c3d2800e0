package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Lines of docs/generated/benchmark.md between which a run writes its results.
const (
	resultsBegin = "<!-- `make bench` writes the lines from here -->\n"
	resultsEnd   = "<!-- to here -->\n"
)

// writeDocs writes the results into generated/benchmark.md in a folder, and draws benchmark.svg there.
func (b *bench) writeDocs(folder string, args []string) error {
	path := filepath.Join(folder, "generated", "benchmark.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), resultsBegin)
	_, after, ended := strings.Cut(rest, resultsEnd)
	if !found || !ended {
		return fmt.Errorf("%s must have the lines %q and %q", path, resultsBegin, resultsEnd)
	}
	page := before + resultsBegin + "\n" + narrow(b.results(args)) + "\n" + resultsEnd + after
	return errors.Join(os.WriteFile(path, []byte(page), 0o644),
		os.WriteFile(filepath.Join(folder, "benchmark.svg"), b.picture(), 0o644))
}

// shellCommand returns the shell command for a run with these arguments.
func shellCommand(args []string) string {
	text := "make bench"
	if len(args) >= 2 && args[0] == "-before" {
		text, args = text+" BEFORE="+args[1], args[2:]
	}
	if joined := strings.Join(args, " "); joined == "" || joined == "-docs ../docs" {
		return text
	}
	plain := regexp.MustCompile(`^[\w./-]+$`)
	quoted := slices.Clone(args)
	for i, arg := range quoted {
		if !plain.MatchString(arg) {
			quoted[i] = "'" + strings.ReplaceAll(arg, "$", "$$") + "'"
		}
	}
	return text + ` BENCHFLAGS="` + strings.Join(quoted, " ") + `"`
}
