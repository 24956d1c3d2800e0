package imports

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// CONTRIBUTING.md explains exactly the modules that go.mod requires. go.mod replaces no module, because a
// replacement has no effect for users of this module.
func TestEachDependencyHasAReason(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Replace []any
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Replace) > 0 {
		t.Errorf("go.mod replaces %v, want no replacements", mod.Replace)
	}
	var want []string
	for _, r := range mod.Require {
		if !r.Indirect {
			want = append(want, r.Path)
		}
	}
	text := readFile(t, "CONTRIBUTING.md")
	_, table, _ := strings.Cut(text, "\n## Dependencies\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var got []string
	for _, row := range regexp.MustCompile(`(?m)^\| (.*) \| .*[a-z]`).FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			got = append(got, name[1])
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("CONTRIBUTING.md explains %q, want %q as in go.mod", got, want)
	}
}
