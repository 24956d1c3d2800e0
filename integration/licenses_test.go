package integration

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/licensecheck"
)

// permitted lists the SPDX identifiers of licenses that require only their text and a notice, or the source
// of changed files.
var permitted = []string{"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC", "Unlicense", "CC0-1.0",
	"MPL-2.0"}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)`)

// Each module of the Caddy that users build has a permitted license.
func TestLicensesOfDependencies(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-json=Module", ".")
	list.Dir = "../xcaddy"
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]string{} // by module
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ Module *struct{ Path, Dir string } }
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Module != nil && !strings.HasPrefix(p.Module.Path, modulePath) {
			folders[p.Module.Path] = p.Module.Dir
		}
	}
	if len(folders) < 20 {
		t.Fatalf("Caddy has %d modules, want at least 20", len(folders))
	}
	for module, folder := range folders {
		files, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, f := range files {
			if f.IsDir() || !licenseFile.MatchString(f.Name()) {
				continue
			}
			text := readFile(t, filepath.Join(folder, f.Name()))
			for _, m := range licensecheck.Scan([]byte(text)).Match {
				if !m.IsURL {
					found = append(found, m.ID)
				}
			}
		}
		if !slices.ContainsFunc(found, func(id string) bool { return slices.Contains(permitted, id) }) {
			t.Errorf("%s has the licenses %q, want one of %q", module, found, permitted)
		}
	}
}
