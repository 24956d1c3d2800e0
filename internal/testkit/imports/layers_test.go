package imports

import (
	"regexp"
	"strings"
	"testing"
)

// room matches a folder in the map of ARCHITECTURE.md.
var room = regexp.MustCompile("`([a-z/]+)/`")

// roomsOf returns the rooms in the map of ARCHITECTURE.md with the number of their row, counted from the top.
func roomsOf(t *testing.T) map[string]int {
	t.Helper()
	_, table, _ := strings.Cut(readFile(t, "ARCHITECTURE.md"), "\n| layer | folders |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rooms := map[string]int{}
	for i, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, " | ")
		for _, found := range room.FindAllStringSubmatch(cells[len(cells)-1], -1) {
			rooms[found[1]] = i
		}
	}
	if len(rooms) < 10 {
		t.Fatalf("the map of ARCHITECTURE.md has the rooms %v, want at least 10", rooms)
	}
	return rooms
}

// roomOf returns the innermost room of a package of this module, or "".
func roomOf(rooms map[string]int, path string) string {
	dir, ours := strings.CutPrefix(path, module+"/")
	if !ours {
		return ""
	}
	for rooms[dir] == 0 && strings.Contains(dir, "/") {
		dir = dir[:strings.LastIndexByte(dir, '/')]
	}
	return dir
}

// Each package is in a room of the map of ARCHITECTURE.md, and needs only packages of its own and lower rows.
// No two rooms need each other.
func TestNoImportGoesUpTheMap(t *testing.T) {
	rooms := roomsOf(t)
	needs := map[[2]string]string{}
	for path, p := range listed(t, packages) {
		from := roomOf(rooms, path)
		if from == "" {
			continue
		}
		if rooms[from] == 0 {
			t.Errorf("%s is in no room of the map of ARCHITECTURE.md", path)
		}
		for _, needed := range p.Deps {
			to := roomOf(rooms, needed)
			if to == "" || to == from {
				continue
			}
			if rooms[to] < rooms[from] {
				t.Errorf("%s needs %s, which is above it in the map of ARCHITECTURE.md", path, needed)
			}
			needs[[2]string{from, to}] = path
			if other := needs[[2]string{to, from}]; other != "" {
				t.Errorf("%s needs %s, and %s needs %s, want no circle", path, to, other, from)
			}
		}
	}
}
