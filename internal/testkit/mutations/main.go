// Command mutations changes the code in one place at a time, and fails unless a named test then fails. Each
// row of table.txt is a file, a text that is there once, its replacement, a package and a test. The files
// stay as they are: the compiler reads the changed text from an overlay.
package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed table.txt
var table string

func main() {
	only := regexp.MustCompile(strings.Join(os.Args[1:], "|"))
	survived := 0
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") || !only.MatchString(line) {
			continue
		}
		result, err := try(strings.Split(strings.TrimSpace(line), " | "))
		if err != nil {
			survived++
			result = err.Error()
		}
		fmt.Printf("%s: %s", result, line)
	}
	if survived > 0 {
		fmt.Fprintf(os.Stderr, "mutations: %d rows have no test that fails\n", survived)
		os.Exit(1)
	}
}

// try makes the change of a row, and returns the time of the test that fails.
func try(row []string) (result string, err error) {
	if len(row) != 5 {
		return "", fmt.Errorf("%d columns, must be a file, two texts, a package and a test", len(row))
	}
	file, from, to, pkg, test := row[0], row[1], row[2], row[3], row[4]
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), from); n != 1 {
		return "", fmt.Errorf("the text is in the file %d times, must be there once", n)
	}
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), from, to, 1)), 0o600); err != nil {
		return "", err
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	out, _ := exec.Command("go", "test", "-vet=off", "-count=1", "-timeout", "5m", "-overlay", overlay,
		"-run", "^"+test+"$", "./"+pkg).CombinedOutput()
	if found := regexp.MustCompile(`--- FAIL: \w+ \((.*)\)`).FindSubmatch(out); found != nil {
		return "fails after " + string(found[1]), nil
	}
	return "", fmt.Errorf("SURVIVED (%.100q)", out)
}
