// What TensorBoard loads into the frame of a plugin.
export function render() {
  location.replace(new URL("runs", import.meta.url));
}
