// Package deploy contains only tests, of the files in this folder and of the release. A test starts what a
// file configures, and sends requests. The module is separate, because nothing else needs these libraries.
package deploy
