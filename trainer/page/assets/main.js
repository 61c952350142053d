document.getElementById("view").textContent = "clime"
