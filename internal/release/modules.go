package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// module is the path of this module. A release builds it from the source in this repository, so the module
// has no checksum.
const module = "github.com/pgratelimit/pg-ratelimit"

// writeDependencies writes the version of Go and the modules of a program, with their checksums as in go.sum.
func writeDependencies(w io.Writer, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "%s\n%s %s\n", info.GoVersion, module, host.Version); err != nil {
		return err
	}
	for _, m := range info.Deps {
		if m.Path == module {
			continue
		}
		if _, err := fmt.Fprintln(w, m.Path, m.Version, m.Sum); err != nil {
			return err
		}
	}
	return nil
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense|notice)`)

// writeLicenses writes the license files of all modules of a program, which must accompany the program.
func writeLicenses(w io.Writer, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	for _, m := range info.Deps {
		if m.Path == module {
			continue
		}
		folder, err := moduleFolder(m.Path)
		if err != nil {
			return err
		}
		files, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		found := false
		for _, file := range files {
			if file.IsDir() || !licenseFile.MatchString(file.Name()) {
				continue
			}
			license, err := os.ReadFile(filepath.Join(folder, file.Name()))
			if err != nil {
				return err
			}
			found = true
			if _, err := fmt.Fprintf(w, "==== %s %s: %s\n\n%s\n\n", m.Path, m.Version, file.Name(),
				strings.TrimSpace(string(license))); err != nil {
				return err
			}
		}
		if !found {
			return fmt.Errorf("%s has no license", m.Path)
		}
	}
	return nil
}

// moduleFolder returns the folder of a module's source on this machine.
func moduleFolder(path string) (string, error) {
	list := exec.Command("go", "list", "-m", "-json", path)
	list.Dir = "xcaddy"
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m %s: %w", path, err)
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		return "", err
	}
	return m.Dir, nil
}
